"""Log-mel filterbank features as Kaldi computes them, their normalisation, and what is varied.

All that is varied (SpecAugment, speed, loudness, noise) is drawn from integers (seed, epoch, number
of the utterance), so that it depends neither on how batches are cut nor on who makes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from magneto.data.cache import cache_directory, fingerprint, is_kept, made_whole, map_numbers
from magneto.data.problems import guarded
from magneto.files import read_json, user_path, write_json
from magneto.progress import SILENT, Progress
from magneto.speech.audio import NO_FRAMES, NON_FINITE, resampled
from magneto.speech.config import AugmentationConfig, SpeechDataConfig
from magneto.speech.data import Utterances, state_of

# Kaldi's, which it applies in this order: each frame less its mean, each sample less 0.97 of the
# one before, times a Hann window to the power of 0.85.
PREEMPHASIS = 0.97
WINDOW_POWER = 0.85
# The least energy that a logarithm is taken of: the smallest step of a float32 at 1.
FLOOR = float(np.finfo(np.float32).eps)
CMVN_FILE = "cmvn.json"
# A feature that is always the same is not blown up.
LEAST_DEVIATION = 1e-3
# Training utterances that the global mean and variance are taken over, at most: 16 hours of
# LibriSpeech, after which they no longer change.
CMVN_UTTERANCES, CMVN_SEED = 5000, 0
# Frames of which the spectrum is taken at a time, so that hours take little memory.
CHUNK = 2000


class FilterBank:
    """Turns samples into log-mel features.

    Like Kaldi's `compute-fbank-feats` without dither, on samples in [-1, 1]; frames that would
    reach beyond the end are left out (`snip-edges`).

    Args:
        config: Of the data; its sample rate and features.
    """

    def __init__(self, config: SpeechDataConfig) -> None:
        self.config = config
        features, rate = config.features, config.sample_rate
        self.window = int(rate * features.frame_length / 1000)
        self.shift = int(rate * features.frame_shift / 1000)
        self.size = 1 << (self.window - 1).bit_length()

    @property
    def shift_seconds(self) -> float:
        """From one frame to the next: of whole samples, so that at 11,025 Hz it is below 10 ms."""
        return self.shift / self.config.sample_rate

    @cached_property
    def _taper(self) -> np.ndarray:
        turn = 2 * np.pi * np.arange(self.window) / (self.window - 1)
        return ((0.5 - 0.5 * np.cos(turn)) ** WINDOW_POWER).astype(np.float32)

    @cached_property
    def filters(self) -> np.ndarray:
        """Weights of frequencies in filters, (size / 2 + 1, mel bins): triangles in mel."""
        bins = self.config.features.mel_bins
        low, high = mel(np.array(self.config.mel_range))
        edges = low + (high - low) / (bins + 1) * np.arange(bins + 2)
        # Kaldi leaves out the frequency that is half the sample rate.
        found = mel(np.arange(self.size // 2) * self.config.sample_rate / self.size)[:, None]
        rising = (found - edges[:-2]) / (edges[1:-1] - edges[:-2])
        falling = (edges[2:] - found) / (edges[2:] - edges[1:-1])
        weights = np.clip(np.minimum(rising, falling), 0, None)
        return np.pad(weights, ((0, 1), (0, 0))).astype(np.float32)

    def frames(self, samples: int | np.ndarray) -> int | np.ndarray:
        """Return how many frames so many samples make."""
        return np.maximum((samples - self.window) // self.shift + 1, 0)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return (frames, mel bins) of mono samples, in float32."""
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
        with np.errstate(over="ignore", invalid="ignore"):  # absurdly loud: seen by who batches it
            spectrum = np.fft.rfft(raised * self._taper, self.size)
            power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
            return np.log(np.maximum(power @ self.filters, FLOOR))


def mel(frequency: np.ndarray) -> np.ndarray:
    """Return frequencies in Hz on the mel scale."""
    return 1127.0 * np.log1p(frequency / 700.0)


@dataclass(frozen=True)
class Normaliser:
    """Brings each feature to mean 0 and variance 1 over a training set (CMVN).

    Attributes:
        mean: Of each feature.
        deviation: Its standard deviation.
        frames: How many it was taken over.
    """

    mean: np.ndarray
    deviation: np.ndarray
    frames: int = 0

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return normalised features, (frames, mel bins)."""
        return (features - self.mean) / self.deviation

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        values = {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}
        write_json(path, values | {"frames": self.frames})


def normalised_alone(features: np.ndarray) -> np.ndarray:
    """Return features of mean 0 and variance 1 over the utterance's own frames."""
    if len(features) == 0:
        return features
    deviation = np.maximum(features.std(0), LEAST_DEVIATION)
    return (features - features.mean(0)) / deviation


Normalise = Callable[[np.ndarray], np.ndarray]
"""From features (frames, mel bins) to normalised ones."""
OWN: dict[str, Normalise] = {"utterance": normalised_alone, "none": np.asarray}
"""What `data.cmvn` can name that takes nothing but the utterance."""


def load_normaliser(path: Path, mel_bins: int) -> Normaliser:
    """Read what `Normaliser.save` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is none, or one of another number of features.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no {path} (data.cmvn is global, utterance, none or the path of a run's {CMVN_FILE})"
        )
    with guarded(prefix=f"{path} is no {CMVN_FILE} of a run: "):
        values = json.loads(path.read_text(encoding="utf-8"))
        mean, deviation = (np.array(values[k], np.float32) for k in ("mean", "deviation"))
        found = Normaliser(mean, deviation, int(values["frames"]))
    if mean.shape != (mel_bins,) or deviation.shape != (mel_bins,) or not (deviation > 0).all():
        raise ValueError(f"{path} is of {mean.size} features, and data.features has {mel_bins}")
    return found


def known_normaliser(config: SpeechDataConfig) -> Normalise:
    """Return what normalises features where that takes no training data.

    Raises:
        FileNotFoundError: If `data.cmvn` names a file that is not there.
        ValueError: If it is "global": means have to be taken, or are in a run.
    """
    if config.cmvn in OWN:
        return OWN[config.cmvn]
    if config.cmvn == "global":
        raise ValueError(f"data.cmvn: global is of training data; a run has its {CMVN_FILE}")
    return load_normaliser(user_path(config.cmvn), config.features.mel_bins)


class SpeechFeatures:
    """Turns samples into normalised features as training saw them, without its data.

    Args:
        config: Of a run's data, with what the run keeps; see `known_normaliser`.
    """

    def __init__(self, config: SpeechDataConfig) -> None:
        self.filter_bank, self.normaliser = FilterBank(config), known_normaliser(config)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return (frames, mel bins) of mono samples at the data's sample rate, in float32."""
        return self.normaliser(self.filter_bank(samples))


Vary = Callable[[np.ndarray], np.ndarray]
"""From samples to samples."""


class Features:
    """Features of a split's utterances, computed each time that they are asked for.

    With `data.cached` they are computed once, and kept in the cache's directory: float32 as they
    were computed, an hour of 80 of them, 100 frames a second, is 115 MB.

    Args:
        utterances: The split.
        filter_bank: What computes them.
        progress: Shows it.
    """

    def __init__(
        self, utterances: Utterances, filter_bank: FilterBank, progress: Progress = SILENT
    ) -> None:
        self.utterances, self.filter_bank = utterances, filter_bank
        self.mel_bins = filter_bank.config.features.mel_bins
        self._kept: np.ndarray | None = None
        if filter_bank.config.cached:
            held = cache_directory() / f"speech-features-{self.fingerprint}"
            if not is_kept(held, progress):
                with made_whole(held) as aside:
                    self._fill(aside, progress)
            self._offsets = np.load(held / "offsets.npy", allow_pickle=False)
            self._problems = read_json(held / "problems.json")
            kept = map_numbers(held / "features.bin", np.float32)
            self._kept = kept.reshape(-1, self.mel_bins)

    @property
    def fingerprint(self) -> str:
        """A name for them, which changes with a recording: of what is kept in the cache."""
        config = self.filter_bank.config
        return fingerprint(
            state_of(self.utterances.table), repr(config.features), config.sample_rate
        )

    def _fill(self, directory: Path, progress: Progress) -> None:
        lengths, problems = [0], []
        with (directory / "features.bin").open("wb") as file:
            for number in range(len(self.utterances)):
                features, problem = self.features(number)
                features.tofile(file)
                lengths.append(len(features))
                problems.append(problem)
                progress.update("computing features", number + 1, len(self.utterances))
        np.save(directory / "offsets.npy", np.cumsum(lengths), allow_pickle=False)
        write_json(directory / "problems.json", problems)

    def frames(self, speeds: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the frames of each utterance by its header, played at a speed; or those kept."""
        if self._kept is not None:
            return np.diff(self._offsets)
        samples = self.utterances.seconds * self.utterances.sample_rate / speeds
        return np.asarray(self.filter_bank.frames(np.ceil(samples).astype(np.int64)))

    def features(self, number: int, vary: Vary = np.asarray) -> tuple[np.ndarray, str]:
        """Return (frames, mel bins) of an utterance, and what is wrong with it.

        Args:
            number: Of the utterance.
            vary: What is done to its samples; nothing to those that are kept.
        """
        if self._kept is not None:
            start, stop = self._offsets[number : number + 2]
            return np.array(self._kept[start:stop]), self._problems[number]
        found = self.utterances.sound(number)
        return self.filter_bank(vary(found.samples)), found.problem

    def normalised(
        self, number: int, normaliser: Normalise, vary: Vary = np.asarray
    ) -> tuple[np.ndarray, str]:
        """Return normalised features, none where they are not finite; and what is wrong."""
        features, problem = self.features(number, vary)
        if len(features) == 0:
            return features, problem or NO_FRAMES
        found = normaliser(features)
        return (found, problem) if np.isfinite(found).all() else (found[:0], problem or NON_FINITE)


def make_normaliser(config: SpeechDataConfig, source: Features, progress: Progress) -> Normalise:
    """Make or load what normalises features, as `data.cmvn` says; global means are taken once.

    Raises:
        FileNotFoundError: If it names a file that is not there.
        ValueError: If there is no training utterance to take the mean of.
    """
    if config.cmvn != "global":
        return known_normaliser(config)
    held = cache_directory() / f"speech-cmvn-{source.fingerprint}"
    if not is_kept(held, progress):
        order = np.random.default_rng(CMVN_SEED).permutation(len(source.utterances))
        chosen = order[:CMVN_UTTERANCES]

        count, sums, squares = 0, np.zeros(1), np.zeros(1)
        for done, number in enumerate(chosen, 1):
            features, problem = source.features(number)
            if not problem and np.isfinite(features).all():
                exact = features.astype(np.float64)
                count += len(exact)
                sums, squares = sums + exact.sum(0), squares + (exact**2).sum(0)
            progress.update("taking means of features", done, len(chosen))
        if count == 0:
            raise ValueError("no training utterance could be read")
        mean = sums / count
        deviation = np.maximum(np.sqrt(np.maximum(squares / count - mean**2, 0)), LEAST_DEVIATION)
        with made_whole(held) as aside:
            Normaliser(mean.astype(np.float32), deviation.astype(np.float32), count).save(
                aside / CMVN_FILE
            )
    return load_normaliser(held / CMVN_FILE, source.mel_bins)


# What random numbers of an utterance or an epoch are for.
SOUND, FEATURES, SPEEDS = 0, 1, 2


class Augmentation:
    """Varies utterances.

    Args:
        config: How.
        sample_rate: Of the samples, in Hz.
    """

    def __init__(self, config: AugmentationConfig, sample_rate: int) -> None:
        self.config, self.sample_rate = config, sample_rate

    def utterance(
        self,
        source: Features,
        normaliser: Normalise,
        number: int,
        speed: float,
        seed: Sequence[int],
    ) -> tuple[np.ndarray, str]:
        """Return normalised features, varied, none of a broken utterance; and what is wrong."""
        vary = partial(self.sound, speed=speed, seed=seed)
        found, problem = source.normalised(number, normaliser, vary)
        return found[:0] if problem else self.features(found, seed), problem

    def speeds(self, count: int, seed: int, epoch: int) -> np.ndarray:
        """Return how fast each of `count` utterances is played in an epoch, (count,)."""
        drawn = np.random.default_rng([seed, epoch, SPEEDS]).integers(
            len(self.config.speeds), size=count
        )
        return np.array(self.config.speeds)[drawn]

    def sound(self, samples: np.ndarray, speed: float, seed: Sequence[int]) -> np.ndarray:
        """Return samples at another speed, louder or softer, with noise."""
        config = self.config
        random = np.random.default_rng([*seed, SOUND])
        if speed != 1:
            samples = resampled(samples, self.sample_rate * speed, self.sample_rate)
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
        """Return a copy of (frames, bins) warped in time and with masks: SpecAugment.

        What is masked becomes the mean over the utterance, which is about 0 where features are
        normalised.
        """
        config = self.config
        random = np.random.default_rng([*seed, FEATURES])
        frames, bins = features.shape
        result = warped(features, config.time_warp, random)
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
        """Return how many time masks an utterance has."""
        config = self.config
        if config.time_masks_ratio == 0:
            return config.time_masks
        return min(config.time_masks, int(config.time_masks_ratio * frames))


def warped(features: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    """Move a point of (frames, bins) by at most `most` frames, and stretch both sides to fit.

    The number of frames stays. Utterances of `2 * most` frames or fewer are only copied.
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
