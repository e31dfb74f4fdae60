"""Log-mel filterbank features as in Kaldi, mean and variance normalisation, and augmentation.

Augmentation depends only on the seed, the epoch and the utterance's index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from magneto.data.cache import cache_directory, create_cached, fingerprint, is_cached, map_array
from magneto.data.problems import guarded
from magneto.data.table import Table
from magneto.files import read_json, user_path, write_json
from magneto.progress import SILENT, Progress
from magneto.speech.audio import NO_FRAMES, NON_FINITE, Waveform, read_sound, resample
from magneto.speech.config import AugmentationConfig, SpeechDataConfig
from magneto.speech.data import recording_states
from magneto.speech.synthetic import SpokenColumn

# Kaldi's processing, in this order: subtract the frame's mean, pre-emphasis with this coefficient,
# a Hann window to this power.
PREEMPHASIS = 0.97
WINDOW_POWER = 0.85
# Minimum energy before the logarithm.
FLOOR = float(np.finfo(np.float32).eps)
CMVN_FILE = "cmvn.json"
# Minimum standard deviation, so that constant features are not amplified.
LEAST_DEVIATION = 1e-3
# Maximum number of training utterances for the global mean and variance: 16 hours of LibriSpeech,
# after which they no longer change.
CMVN_UTTERANCES, CMVN_SEED = 5000, 0
# Frames whose spectrum is computed at a time, to save memory on long recordings.
CHUNK = 2000


class FilterBank:
    """Log-mel features of samples.

    The features equal those of Kaldi's `compute-fbank-feats` with `snip-edges` and without dither.
    Samples are in [-1, 1].
    """

    def __init__(self, config: SpeechDataConfig) -> None:
        self.config = config
        features, rate = config.features, config.sample_rate
        self.window = int(rate * features.frame_length / 1000)
        self.shift = int(rate * features.frame_shift / 1000)
        self.size = 1 << (self.window - 1).bit_length()
        turn = 2 * np.pi * np.arange(self.window) / (self.window - 1)
        self.taper = ((0.5 - 0.5 * np.cos(turn)) ** WINDOW_POWER).astype(np.float32)

    @property
    def shift_seconds(self) -> float:
        """Frame shift in seconds, rounded down to whole samples."""
        return self.shift / self.config.sample_rate

    @cached_property
    def filters(self) -> np.ndarray:
        """Triangular mel filters, (frequencies of the FFT, mel bins)."""
        bins = self.config.features.mel_bins
        low, high = mel(np.array(self.config.mel_range))
        edges = low + (high - low) / (bins + 1) * np.arange(bins + 2)
        # Kaldi omits the frequency at half the sample rate.
        found = mel(np.arange(self.size // 2) * self.config.sample_rate / self.size)[:, None]
        rising = (found - edges[:-2]) / (edges[1:-1] - edges[:-2])
        falling = (edges[2:] - found) / (edges[2:] - edges[1:-1])
        weights = np.clip(np.minimum(rising, falling), 0, None)
        return np.pad(weights, ((0, 1), (0, 0))).astype(np.float32)

    def frames(self, samples: int | np.ndarray) -> int | np.ndarray:
        """Return the number of frames for a number of samples."""
        return np.maximum((samples - self.window) // self.shift + 1, 0)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return the features of mono samples, (frames, mel bins), float32."""
        if len(samples) < self.window:
            return np.zeros((0, self.config.features.mel_bins), np.float32)
        samples = np.ascontiguousarray(samples, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(samples, self.window)[:: self.shift]
        parts = range(0, len(windows), CHUNK)
        return np.concatenate([self._features(windows[at : at + CHUNK]) for at in parts])

    def _features(self, windows: np.ndarray) -> np.ndarray:
        centred = windows - windows.mean(1, keepdims=True)
        raised = np.empty_like(centred)
        raised[:, 1:] = centred[:, 1:] - PREEMPHASIS * centred[:, :-1]
        raised[:, 0] = (1 - PREEMPHASIS) * centred[:, 0]
        with np.errstate(over="ignore", invalid="ignore"):  # non-finite features are found later
            spectrum = np.fft.rfft(raised * self.taper, self.size)
            power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
            return np.log(np.maximum(power @ self.filters, FLOOR))


def mel(frequency: np.ndarray) -> np.ndarray:
    return 1127.0 * np.log1p(frequency / 700.0)


@dataclass(frozen=True)
class Normaliser:
    """Mean and variance normalisation of features over a training set (CMVN).

    Attributes:
        mean: Mean of each feature.
        deviation: Standard deviation of each feature.
    """

    mean: np.ndarray
    deviation: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Normalise features (frames, mel bins)."""
        return (features - self.mean) / self.deviation

    def save(self, path: Path) -> None:
        write_json(path, {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()})


def normalise_utterance(features: np.ndarray) -> np.ndarray:
    if len(features) == 0:
        return features
    deviation = np.maximum(features.std(0), LEAST_DEVIATION)
    return (features - features.mean(0)) / deviation


Normalise = Callable[[np.ndarray], np.ndarray]
"""Function that normalises features (frames, mel bins)."""
UTTERANCE_NORMALISERS: dict[str, Normalise] = {"utterance": normalise_utterance, "none": np.asarray}
"""Normalisers that need no training set; the keys are values of `data.cmvn`."""


def load_normaliser(path: Path, mel_bins: int) -> Normaliser:
    """Load a normaliser that `Normaliser.save` wrote.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is malformed, or does not have `mel_bins` features.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f'no {path}. data.cmvn must be "global", "utterance", "none" or the path of a run\'s '
            f"{CMVN_FILE}."
        )
    with guarded(prefix=f"{path} is not a run's {CMVN_FILE}: "):
        values = json.loads(path.read_text(encoding="utf-8"))
        mean, deviation = (np.array(values[k], np.float32) for k in ("mean", "deviation"))
    if mean.shape != (mel_bins,) or deviation.shape != (mel_bins,) or not (deviation > 0).all():
        raise ValueError(f"{path} must have {mel_bins} means and {mel_bins} deviations "
                         "(data.features.mel_bins), and all deviations must be above 0. It has "
                         f"{mean.size} means and {deviation.size} deviations.")  # fmt: skip
    return Normaliser(mean, deviation)


def stored_normaliser(config: SpeechDataConfig) -> Normalise:
    if config.cmvn in UTTERANCE_NORMALISERS:
        return UTTERANCE_NORMALISERS[config.cmvn]
    if config.cmvn == "global":
        raise ValueError(f'data.cmvn "global" needs training data. Set data.cmvn to '
                         f"the path of a run's {CMVN_FILE}.")  # fmt: skip
    return load_normaliser(user_path(config.cmvn), config.features.mel_bins)


class SpeechFeatures:
    """Function that computes the same normalised features as a run, without the run's data.

    Args:
        config: Data configuration of the run. `cmvn` must not be "global".
    """

    def __init__(self, config: SpeechDataConfig) -> None:
        self.filter_bank, self.normaliser = FilterBank(config), stored_normaliser(config)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return normalised features (frames, mel bins) of mono samples at `config.sample_rate`."""
        return self.normaliser(self.filter_bank(samples))


Transform = Callable[[np.ndarray], np.ndarray]
"""Function that augments samples."""


class Features:
    """Normalised features of a split's utterances.

    Features are computed on access. With `data.cached`, features are computed once and cached on
    disk as float32. With the default filter bank, cached features of an hour of audio take 115 MB.

    Args:
        table: The utterances, a split of `SpeechSplits`.
        filter_bank: Filter bank of the data configuration.
        progress: Progress display.
        normaliser: Normaliser of the training split. With None, the normaliser of `data.cmvn` is
            used. If `data.cmvn` is "global", `table` must be the training split, from which the
            normaliser is computed.
    """

    def __init__(
        self,
        table: Table,
        filter_bank: FilterBank,
        progress: Progress = SILENT,
        normaliser: Normalise | None = None,
    ) -> None:
        self.table, self.filter_bank = table, filter_bank
        self.mel_bins = filter_bank.config.features.mel_bins
        self._kept: np.ndarray | None = None
        if filter_bank.config.cached:
            cache = cache_directory() / f"speech-features-{self.fingerprint}"
            if not is_cached(cache, progress):
                with create_cached(cache) as directory:
                    self._write_cache(directory, progress)
            self._offsets = np.load(cache / "offsets.npy", allow_pickle=False)
            self._problems = read_json(cache / "problems.json")
            values = map_array(cache / "features.bin", np.float32)
            self._kept = values.reshape(-1, self.mel_bins)
        self.normaliser = normaliser or make_normaliser(self, progress)

    @property
    def fingerprint(self) -> str:
        config = self.filter_bank.config
        return fingerprint(recording_states(self.table), repr(config.features), config.sample_rate)

    def _write_cache(self, directory: Path, progress: Progress) -> None:
        lengths, problems = [0], []
        with (directory / "features.bin").open("wb") as file:
            for number in range(len(self.table)):
                features, problem = self.features(number)
                features.tofile(file)
                lengths.append(len(features))
                problems.append(problem)
                progress.update("computing features", number + 1, len(self.table))
        np.save(directory / "offsets.npy", np.cumsum(lengths), allow_pickle=False)
        write_json(directory / "problems.json", problems)

    def frames(self, speeds: np.ndarray | float = 1.0) -> np.ndarray:
        """Return each utterance's number of frames after speed perturbation by `speeds`.

        If no features are cached, the numbers of frames are estimated from the durations in the
        headers.
        """
        if self._kept is not None:
            return np.diff(self._offsets)
        samples = self.table.values("seconds") * self.filter_bank.config.sample_rate / speeds
        return np.asarray(self.filter_bank.frames(np.ceil(samples).astype(np.int64)))

    def sound(self, number: int) -> Waveform:
        """Decode an utterance; a broken recording raises no error."""
        row, rate = int(self.table.rows[number]), self.filter_bank.config.sample_rate
        audio, segments = (self.table.columns[name] for name in ("audio", "segment"))
        if isinstance(audio, SpokenColumn):
            return audio[row].sound()
        return read_sound(partial(audio.file, row), rate, segments[row])

    def features(self, number: int, vary: Transform = np.asarray) -> tuple[np.ndarray, str]:
        """Return an utterance's features, and the recording's problem ("" if none).

        Features have the shape (frames, mel bins). `vary` augments the samples. Cached features are
        returned without augmentation.
        """
        if self._kept is not None:
            start, stop = self._offsets[number : number + 2]
            return np.array(self._kept[start:stop]), self._problems[number]
        found = self.sound(number)
        return self.filter_bank(vary(found.samples)), found.problem

    def normalised(self, number: int, vary: Transform = np.asarray) -> tuple[np.ndarray, str]:
        """Return an utterance's normalised features, and the recording's problem ("" if none).

        If a feature is not finite, the result has 0 frames.
        """
        features, problem = self.features(number, vary)
        if len(features) == 0:
            return features, problem or NO_FRAMES
        found = self.normaliser(features)
        return (found, problem) if np.isfinite(found).all() else (found[:0], problem or NON_FINITE)


def make_normaliser(source: Features, progress: Progress) -> Normalise:
    config = source.filter_bank.config
    if config.cmvn != "global":
        return stored_normaliser(config)
    cache = cache_directory() / f"speech-cmvn-{source.fingerprint}"
    if not is_cached(cache, progress):
        order = np.random.default_rng(CMVN_SEED).permutation(len(source.table))
        chosen = order[:CMVN_UTTERANCES]
        count, sums, squares = 0, np.zeros(1), np.zeros(1)
        for done, number in enumerate(chosen, 1):
            features, problem = source.features(number)
            if not problem and np.isfinite(features).all():
                exact = features.astype(np.float64)
                count += len(exact)
                sums, squares = sums + exact.sum(0), squares + (exact**2).sum(0)
            progress.update("computing feature means", done, len(chosen))
        if count == 0:
            raise ValueError('data.cmvn "global" needs training data, but no training utterance '
                             "can be read: check the recordings")  # fmt: skip
        mean = sums / count
        deviation = np.maximum(np.sqrt(np.maximum(squares / count - mean**2, 0)), LEAST_DEVIATION)
        with create_cached(cache) as directory:
            made = Normaliser(mean.astype(np.float32), deviation.astype(np.float32))
            made.save(directory / CMVN_FILE)
    return load_normaliser(cache / CMVN_FILE, source.mel_bins)


# Streams of random numbers of an utterance or an epoch.
SOUND, FEATURES, SPEEDS = 0, 1, 2


class Augmentation:
    """Data augmentation of utterances."""

    def __init__(self, config: AugmentationConfig, sample_rate: int) -> None:
        self.config, self.sample_rate = config, sample_rate

    def utterance(
        self, source: Features, number: int, speed: float, seed: Sequence[int]
    ) -> tuple[np.ndarray, str]:
        """Return an utterance's augmented features, and the recording's problem ("" if none).

        A broken utterance gets 0 frames.
        """
        vary = partial(self.sound, speed=speed, seed=seed)
        found, problem = source.normalised(number, vary)
        return found[:0] if problem else self.features(found, seed), problem

    def speeds(self, count: int, seed: int, epoch: int) -> np.ndarray:
        """Return the random speed factors of `count` utterances in an epoch, (count,)."""
        chosen = np.random.default_rng([seed, epoch, SPEEDS]).integers(
            len(self.config.speeds), size=count
        )
        return np.array(self.config.speeds)[chosen]

    def sound(self, samples: np.ndarray, speed: float, seed: Sequence[int]) -> np.ndarray:
        config = self.config
        random = np.random.default_rng([*seed, SOUND])
        if speed != 1:
            samples = resample(samples, self.sample_rate * speed, self.sample_rate)
        gain = 10 ** (random.uniform(-config.gain, config.gain) / 20)
        noisy = random.random() < config.noise
        if config.gain:
            samples = samples * np.float32(gain)
        if noisy and len(samples):
            ratio = 10 ** (-random.uniform(*config.noise_snr) / 10)
            deviation = np.sqrt(float((samples.astype(np.float64) ** 2).mean()) * ratio)
            noise = random.standard_normal(len(samples), np.float32)
            samples = samples + np.float32(deviation) * noise
        return samples

    def features(self, features: np.ndarray, seed: Sequence[int]) -> np.ndarray:
        """Apply SpecAugment (time warp and masks) to a copy of features (frames, bins).

        Masked values become the mean over all frames and bins of the utterance.
        """
        config = self.config
        random = np.random.default_rng([*seed, FEATURES])
        frames, bins = features.shape
        result = time_warp(features, config.time_warp, random)
        mean = features.mean() if features.size else 0.0
        widths = random.integers(0, min(config.frequency_width, bins) + 1, config.frequency_masks)
        for width in widths:
            start = random.integers(0, bins - width + 1)
            result[:, start : start + width] = mean
        longest = int(config.time_ratio * frames)
        for length in random.integers(0, longest + 1, self.time_masks(frames)):
            start = random.integers(0, frames - length + 1)
            result[start : start + length] = mean
        return result

    def time_masks(self, frames: int) -> int:
        config = self.config
        if config.time_masks_ratio == 0:
            return config.time_masks
        return min(config.time_masks, int(config.time_masks_ratio * frames))


def time_warp(features: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    """Warp features (frames, bins) in time by shifting a random point by up to `most` frames.

    The number of frames is unchanged. Utterances with at most `2 * most` frames are not warped.
    """
    frames = len(features)
    if most == 0 or frames <= 2 * most:
        return features.copy()
    point = random.integers(most, frames - most)
    moved = point + random.integers(-most, most + 1)
    moved = min(max(moved, 1), frames - 2)
    places = np.interp(np.arange(frames), [0, int(moved), frames - 1], [0, int(point), frames - 1])
    low = np.minimum(places.astype(int), frames - 2)
    share = (places - low)[:, None].astype(features.dtype)
    return features[low] * (1 - share) + features[low + 1] * share
