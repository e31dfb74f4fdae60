"""Parts of the `data` section of recipes of speech: features, what is varied, built-in sets."""

from __future__ import annotations

from dataclasses import dataclass

from magneto.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class FilterBankConfig:
    """Log-mel filterbank features, as Kaldi computes them.

    Attributes:
        mel_bins: Features of a frame.
        frame_length: Of a window, in milliseconds.
        frame_shift: From one window to the next, in milliseconds.
        low_frequency: Where the lowest filter begins, in Hz.
        high_frequency: Where the highest ends, in Hz; 0 for half the sample rate, and a negative
            number that many below it.
    """

    mel_bins: int = 80
    frame_length: float = 25.0
    frame_shift: float = 10.0
    low_frequency: float = 20.0
    high_frequency: float = 0.0

    def __post_init__(self) -> None:
        wrong = []
        if self.mel_bins < 4:
            wrong.append(f"mel_bins must be 4 or more, not {self.mel_bins}")
        if not 1 <= self.frame_shift <= self.frame_length:
            wrong.append("frame_shift must be 1 or more and at most frame_length "
                         f"({self.frame_length} ms), not {self.frame_shift}")  # fmt: skip
        if self.low_frequency < 0:
            wrong.append(f"low_frequency must be 0 or more, not {self.low_frequency}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig:
    """What is varied of training utterances, anew in each epoch. The defaults are the paper's.

    Attributes:
        frequency_masks: Of SpecAugment (arXiv 1904.08779); 0 for none.
        frequency_width: Widest of them, in bins.
        time_masks: Of SpecAugment, at most; 0 for none.
        time_ratio: Longest of them, as a share of the utterance's frames.
        time_masks_ratio: So many masks a frame, up to `time_masks` (arXiv 1912.05533, p_M); 0 for
            `time_masks` whatever the length.
        time_warp: Frames by which a point of the utterance is moved, at most (ESPnet: 5); 0 for
            none.
        speeds: Of playing, drawn evenly: (0.9, 1.0, 1.1) is usual, and changes the pitch too.
        gain: Louder or softer by at most so many decibels.
        noise: Share of the utterances that white noise is added to.
        noise_snr: Least and greatest ratio of speech to noise, in decibels.
    """

    frequency_masks: int = 2
    frequency_width: int = 27
    time_masks: int = 10
    time_ratio: float = 0.04
    time_masks_ratio: float = 0.0
    time_warp: int = 0
    speeds: tuple[float, ...] = (1.0,)
    gain: float = 0.0
    noise: float = 0.0
    noise_snr: tuple[float, float] = (10.0, 30.0)

    def __post_init__(self) -> None:
        names = ("frequency_masks", "frequency_width", "time_masks", "time_masks_ratio",
                 "time_warp", "gain")  # fmt: skip
        wrong = [
            f"{name} must be 0 or more, not {getattr(self, name)}"
            for name in names
            if getattr(self, name) < 0
        ]
        wrong += [
            f"{name} must be in [0, 1], not {getattr(self, name)}"
            for name in ("time_ratio", "noise")
            if not 0 <= getattr(self, name) <= 1
        ]
        if not self.speeds or not all(0.5 <= speed <= 2 for speed in self.speeds):
            wrong.append(f"speeds must be one or more numbers in [0.5, 2], not {self.speeds}")
        wrong += _wrong_range("noise_snr", self.noise_snr)
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """The built-in utterances: how many there are and what they are like.

    Attributes:
        train_utterances: Of a training epoch; drawn by the recipe's seed.
        validation_utterances: The same in every run, by other speakers.
        words: Fewest and most of an utterance.
        snr: Least and greatest ratio of signal to noise, in decibels.
    """

    train_utterances: int = 4000
    validation_utterances: int = 200
    words: tuple[int, int] = (1, 5)
    snr: tuple[float, float] = (10.0, 40.0)

    def __post_init__(self) -> None:
        wrong = [
            f"{name} must be 1 or more, not {getattr(self, name)}"
            for name in ("train_utterances", "validation_utterances")
            if getattr(self, name) < 1
        ]
        for name, least in (("words", 1), ("snr", None)):
            wrong += _wrong_range(name, getattr(self, name), least)
        if wrong:
            raise ConfigError(wrong)


def _wrong_range(name: str, values: tuple[float, float], least: float | None = None) -> list[str]:
    low, high = values
    if low > high:
        return [f"{name} must be the least and the greatest, not {low}, {high}"]
    if least is not None and low < least:
        return [f"{name} must be {least} or more, not {low}"]
    return []
