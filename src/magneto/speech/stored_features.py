"""Features of a split's utterances: computed when they are asked for, or once and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from magneto.speech.features import FilterBank
from magneto.speech.utterances import Utterances

Vary = Callable[[np.ndarray], np.ndarray]
"""From samples to samples."""


class FeatureSource(Protocol):
    """Where the features of a split's utterances come from.

    Attributes:
        utterances: The split.
        mel_bins: Features of a frame.
    """

    utterances: Utterances
    mel_bins: int

    def frames(self, speeds: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the frames of each utterance by its header, played at a speed."""
        ...

    def features(self, number: int, vary: Vary = np.asarray) -> tuple[np.ndarray, str]:
        """Return (frames, mel bins) of an utterance, and what is wrong with it."""
        ...


class ComputedFeatures:
    """Reads an utterance and computes its features each time.

    Args:
        utterances: The split.
        filter_bank: What computes them.
    """

    def __init__(self, utterances: Utterances, filter_bank: FilterBank) -> None:
        self.utterances, self.filter_bank = utterances, filter_bank
        self.mel_bins = filter_bank.config.features.mel_bins

    def frames(self, speeds: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the frames of each utterance by its header, played at a speed."""
        samples = self.utterances.durations * self.utterances.sample_rate / speeds
        return np.asarray(self.filter_bank.frames(np.ceil(samples).astype(np.int64)))

    def features(self, number: int, vary: Vary = np.asarray) -> tuple[np.ndarray, str]:
        """Return (frames, mel bins) of an utterance, and what is wrong with it."""
        found = self.utterances.utterance(number)
        return self.filter_bank(vary(found.samples)), found.problem
