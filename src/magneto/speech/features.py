"""Log-mel filterbank features as Kaldi computes them, and their normalisation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from magneto.data.problems import guarded
from magneto.files import user_path, write_json
from magneto.speech.config import SpeechDataConfig

# Kaldi's, which it applies in this order: each frame less its mean, each sample less 0.97 of the
# one before, times a Hann window to the power of 0.85.
PREEMPHASIS = 0.97
WINDOW_POWER = 0.85
# The least energy that a logarithm is taken of: the smallest step of a float32 at 1.
FLOOR = float(np.finfo(np.float32).eps)
CMVN_FILE = "cmvn.json"
# A feature that is always the same is not blown up.
LEAST_DEVIATION = 1e-3
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
        frames: That they were taken over.
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


class UtteranceNormaliser:
    """Brings each feature of an utterance to mean 0 and variance 1 over its own frames."""

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return normalised features, (frames, mel bins)."""
        if len(features) == 0:
            return features
        deviation = np.maximum(features.std(0), LEAST_DEVIATION)
        return (features - features.mean(0)) / deviation

    def save(self, path: Path) -> None:
        """Keep nothing: each utterance says it itself."""
        return None


class NoNormaliser:
    """Leaves features as they are."""

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the features."""
        return features

    def save(self, path: Path) -> None:
        """Keep nothing."""
        return None


AnyNormaliser = Normaliser | UtteranceNormaliser | NoNormaliser


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


def known_normaliser(config: SpeechDataConfig) -> AnyNormaliser:
    """Return what normalises features where that takes no training data.

    Raises:
        FileNotFoundError: If `data.cmvn` names a file that is not there.
        ValueError: If it is "global": means have to be taken, or are in a run.
    """
    if config.cmvn == "utterance":
        return UtteranceNormaliser()
    if config.cmvn == "none":
        return NoNormaliser()
    if config.cmvn == "global":
        raise ValueError(f"data.cmvn: global is of training data; a run has its {CMVN_FILE}")
    return load_normaliser(user_path(config.cmvn), config.features.mel_bins)


class SpeechFeatures:
    """Turns samples into normalised features as training saw them, without its data.

    Args:
        config: Of a run's data, with what the run keeps.

    Raises:
        FileNotFoundError: As `known_normaliser`.
        ValueError: As `known_normaliser`.
    """

    def __init__(self, config: SpeechDataConfig) -> None:
        self.filter_bank, self.normaliser = FilterBank(config), known_normaliser(config)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return (frames, mel bins) of mono samples at the data's sample rate, in float32."""
        return self.normaliser(self.filter_bank(samples))


class FeatureStatistics:
    """Sums over frames, from which a `Normaliser` is made."""

    def __init__(self, mel_bins: int) -> None:
        self.count = 0
        self.sums = np.zeros(mel_bins)
        self.squares = np.zeros(mel_bins)

    def add(self, features: np.ndarray) -> None:
        """Add the frames of an utterance."""
        exact = features.astype(np.float64)
        self.count += len(exact)
        self.sums += exact.sum(0)
        self.squares += (exact**2).sum(0)

    def normaliser(self) -> Normaliser:
        """Return mean and deviation of all frames added.

        Raises:
            ValueError: If there were none.
        """
        if self.count == 0:
            raise ValueError("no training utterance could be read")
        mean = self.sums / self.count
        variance = np.maximum(self.squares / self.count - mean**2, 0)
        deviation = np.maximum(np.sqrt(variance), LEAST_DEVIATION)
        return Normaliser(mean.astype(np.float32), deviation.astype(np.float32), self.count)
