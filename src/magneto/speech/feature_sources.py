"""Features of a split's utterances: computed when they are asked for, or once and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from magneto.data.cache import cache_directory, fingerprint, is_kept, made_whole
from magneto.data.problems import BadRecord, guarded
from magneto.progress import Progress
from magneto.speech.audio import UNREADABLE
from magneto.speech.features import FilterBank
from magneto.speech.utterances import Utterances, recording_states

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
        try:
            with guarded():
                found = self.utterances.utterance(number)
                return self.filter_bank(vary(found.samples)), found.problem
        except BadRecord:
            return np.zeros((0, self.mel_bins), np.float32), UNREADABLE


class StoredFeatures:
    """Computes the features of all utterances once, and keeps them in the cache's directory.

    They are float32 as they were computed: an hour of 80 of them, 100 frames a second, is 115 MB.

    Args:
        computed: What computes them.
        progress: Shows it.
    """

    def __init__(self, computed: ComputedFeatures, progress: Progress) -> None:
        self.computed, self.utterances = computed, computed.utterances
        self.mel_bins = computed.mel_bins
        config = computed.filter_bank.config
        contents = recording_states(self.utterances.rows)
        name = fingerprint(contents, repr(config.features), config.sample_rate)
        held = cache_directory() / f"speech-features-{name}"
        if not is_kept(held, progress):
            with made_whole(held) as aside:
                self._fill(aside, progress)
        self._offsets = np.load(held / "offsets.npy", allow_pickle=False)
        self._problems = json.loads((held / "problems.json").read_text(encoding="utf-8"))
        count = int(self._offsets[-1])
        self._frames = (
            np.memmap(held / "features.bin", np.float32, mode="r", shape=(count, self.mel_bins))
            if count
            else np.zeros((0, self.mel_bins), np.float32)
        )  # what is empty can't be mapped

    def _fill(self, directory: Path, progress: Progress) -> None:
        lengths, problems = [0], []
        with (directory / "features.bin").open("wb") as file:
            for number in range(len(self.utterances)):
                features, problem = self.computed.features(number)
                features.tofile(file)
                lengths.append(len(features))
                problems.append(problem)
                progress.update("computing features", number + 1, len(self.utterances))
        np.save(directory / "offsets.npy", np.cumsum(lengths), allow_pickle=False)
        (directory / "problems.json").write_text(json.dumps(problems), encoding="utf-8")

    def frames(self, speeds: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the frames of each utterance; nothing stored is played at another speed."""
        return np.diff(self._offsets)

    def features(self, number: int, vary: Vary = np.asarray) -> tuple[np.ndarray, str]:
        """Return (frames, mel bins) of an utterance as they were stored, and what is wrong."""
        start, stop = self._offsets[number : number + 2]
        return np.array(self._frames[start:stop]), self._problems[number]
