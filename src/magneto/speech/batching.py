"""Groups of utterances of like length, padded to the longest of each.

An epoch's utterances are shuffled and cut in blocks; a block is sorted by frames and tokens and cut
in groups, within two budgets: of padded frames, which the encoder goes through, and of padded
frames times tokens, which the transducer loss goes through. The groups are shuffled. All is a
function of (seed, epoch), so that a run resumes exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.batching import epoch_order, listed, make_named
from magneto.speech.audio import NO_FRAMES, NON_FINITE
from magneto.speech.augmentation import Augmentation
from magneto.speech.feature_sources import FeatureSource
from magneto.speech.features import AnyNormaliser
from magneto.speech.vocabulary import BLANK

# The fewest frames of a row, so that every front-end makes a feature of it.
MIN_FRAMES = 8
# Utterances whose frames differ by less, as a factor, are sorted by tokens.
LIKE_FRAMES = 1.1


def heard_frames(frames: int) -> int:
    """Return how many frames a model hears of a sound that has so many: a short one is filled up.

    Of a sound without any frame nothing is heard.
    """
    return max(frames, MIN_FRAMES) if frames else 0


@dataclass(frozen=True)
class SpeechBatch:
    """A padded group of utterances.

    An utterance of which nothing can be used is a row of weight 0, with `MIN_FRAMES` frames of
    zeros and no labels: leave it out of the loss and of the count, and take its hypothesis as
    empty.

    Attributes:
        features: (batch, frames, mel bins), float32, normalised; 0 where there is padding.
        feature_lengths: Frames of each, (batch,), int64.
        targets: Labels, (batch, labels), int64; blank (0) where there is padding.
        target_lengths: Labels of each, (batch,), int64.
        sizes: Frames and labels of each as plain numbers, so that nobody has to read them from a
            device.
        weights: 1, or 0 for an utterance that can't be used, (batch,), float32.
        ids: Of the utterances.
        problems: What is wrong with each; "" if nothing.
        texts: Transcripts as they are.
        frames: Real frames of all of them: what throughput and padding are counted by.
    """

    features: Tensor
    feature_lengths: Tensor
    targets: Tensor
    target_lengths: Tensor
    sizes: list[tuple[int, int]]
    weights: Tensor
    ids: list[str]
    problems: list[str]
    texts: list[str]
    frames: int

    @property
    def cells(self) -> int:
        """Places of frames, padding included."""
        return self.features.shape[0] * self.features.shape[1]


class BatchMaker:
    """Makes padded groups from a split's utterances.

    Args:
        source: Of features.
        labels: Of each utterance.
        normaliser: Of features.
    """

    def __init__(
        self, source: FeatureSource, labels: Sequence[np.ndarray], normaliser: AnyNormaliser
    ) -> None:
        self.source, self.labels, self.normaliser = source, labels, normaliser
        self.rows = source.utterances.rows
        self.mel_bins = source.mel_bins

    def lengths(self, speeds: np.ndarray | float = 1.0) -> np.ndarray:
        """Return (utterances, 2) frames, by the headers, and labels.

        Args:
            speeds: At which each is played.
        """
        frames = np.maximum(self.source.frames(speeds), MIN_FRAMES)
        return np.stack([frames, [len(each) for each in self.labels]], 1)

    def evaluation_batch(self, numbers: np.ndarray) -> SpeechBatch:
        """Return a group of utterances as they are; of broken ones, what can be read."""
        found = [self._normalised(*self.source.features(number)) for number in numbers]
        return self._padded(numbers, [each for each, _ in found], [why for _, why in found])

    def training_batch(
        self, numbers: np.ndarray, speeds: np.ndarray, augmentation: Augmentation, seed: Seed
    ) -> SpeechBatch:
        """Return a group of utterances, varied; broken ones are left out.

        Args:
            numbers: Of the utterances.
            speeds: At which every utterance of the split is played.
            augmentation: How they are varied.
            seed: Of the run, and the epoch.
        """
        features, problems = [], []
        for number in numbers:
            its = (*seed, int(number))

            def vary(samples: np.ndarray, its: Any = its, number: int = number) -> np.ndarray:
                return augmentation.sound(samples, float(speeds[number]), its)

            found, problem = self._normalised(*self.source.features(number, vary))
            if problem:
                found = None
            features.append(None if found is None else augmentation.features(found, its))
            problems.append(problem)
        return self._padded(numbers, features, problems)

    def _normalised(self, features: np.ndarray, problem: str) -> tuple[np.ndarray | None, str]:
        """Return normalised features, None if there are none that are finite; and the problem."""
        if len(features) == 0:
            return None, problem or NO_FRAMES
        found = self.normaliser(features)
        return (found, problem) if np.isfinite(found).all() else (None, problem or NON_FINITE)

    def _padded(
        self, numbers: np.ndarray, found: Sequence[np.ndarray | None], problems: list[str]
    ) -> SpeechBatch:
        labels = [
            self.labels[number] if each is not None else self.labels[number][:0]
            for number, each in zip(numbers, found, strict=True)
        ]
        lengths = [MIN_FRAMES if each is None else max(len(each), MIN_FRAMES) for each in found]
        features = np.zeros((len(numbers), max(lengths), self.mel_bins), np.float32)
        targets = np.full((len(numbers), max(len(each) for each in labels)), BLANK, np.int64)
        for row, (each, label) in enumerate(zip(found, labels, strict=True)):
            if each is not None:
                features[row, : len(each)] = each
            targets[row, : len(label)] = label
        return SpeechBatch(
            torch.from_numpy(features),
            torch.tensor(lengths),
            torch.from_numpy(targets),
            torch.tensor([len(label) for label in labels]),
            [(length, len(label)) for length, label in zip(lengths, labels, strict=True)],
            torch.tensor([float(each is not None) for each in found]),
            [self.rows[number].id for number in numbers],
            problems,
            [self.rows[number].text for number in numbers],
            sum(len(each) for each in found if each is not None),
        )


Seed = tuple[int, int]
"""Of a run, and the epoch."""


def cut_groups(
    lengths: np.ndarray, max_frames: int, max_cells: int, random: np.random.Generator
) -> list[np.ndarray]:
    """Sort utterances by length and cut them into groups.

    Args:
        lengths: (utterances, 2) of frames and labels.
        max_frames: Largest count x longest frames of a group; one utterance alone may have more.
        max_cells: Likewise, x (most labels + 1).
        random: Orders utterances of equal lengths.

    Returns:
        Numbers of the utterances of each group, short ones first.
    """
    shuffled = random.permutation(len(lengths))
    frames, labels = lengths[shuffled].T
    like = (np.log(np.maximum(frames, 1)) / np.log(LIKE_FRAMES)).astype(int)
    # Labels rise and fall in turn, so that they don't jump from one kind of length to the next.
    order = shuffled[np.lexsort((np.where(like % 2, labels, -labels), like))]
    groups, start = [], 0
    while start < len(order):
        most = max(max_frames // max(int(lengths[order[start], 0]), 1), 1)
        here = np.maximum.accumulate(lengths[order[start : start + most]], axis=0)
        padded = here[:, 0] * np.arange(1, len(here) + 1)
        fits = (padded <= max_frames) & (padded * (here[:, 1] + 1) <= max_cells)
        stop = start + max(int(fits.sum()), 1)
        groups.append(order[start:stop])
        start = stop
    return groups


class SpeechGroups:
    """A stream of groups, varied anew in each epoch; see `magneto.training.task.BatchStream`.

    A global batch is `batch_size` groups, and a piece of it is a list of them. The state is the
    epoch and how many of its groups are used.

    Args:
        maker: Of groups.
        augmentation: How utterances are varied.
        cut: From lengths and a random generator to groups.
        block: Utterances that are sorted by length at a time.
        batch_size: Groups of a global batch.
        seed: Of the order and of what is varied.
    """

    def __init__(
        self,
        maker: BatchMaker,
        augmentation: Augmentation,
        cut: Callable[[np.ndarray, np.random.Generator], list[np.ndarray]],
        block: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self.maker, self.augmentation, self.cut = maker, augmentation, cut
        self.block, self.batch_size, self.seed = block, batch_size, seed
        self.epoch, self.used = 0, 0
        self._planned = -1
        self._groups: list[np.ndarray] = []
        self._speeds = np.zeros(0)

    def groups(self, epoch: int) -> list[np.ndarray]:
        """Return the numbers of the utterances of an epoch's groups, in order."""
        if self._planned != epoch:
            count = len(self.maker.rows)
            self._speeds = self.augmentation.speeds(count, self.seed, epoch)
            lengths = self.maker.lengths(self._speeds)
            order = epoch_order(count, self.seed, epoch)
            random = np.random.default_rng([self.seed, epoch, 1])
            groups = []
            for start in range(0, count, self.block):
                block = order[start : start + self.block]
                groups += [block[group] for group in self.cut(lengths[block], random)]
            self._groups = [groups[number] for number in random.permutation(len(groups))]
            self._planned = epoch
        return self._groups

    def next(self, parts: int, wanted: Sequence[int]) -> list[list[SpeechBatch]]:
        """Cut the next global batch in pieces, which are lists of groups."""
        return [
            [self._make(epoch, group) for epoch, group in piece]
            for piece in self._choose_next(parts, wanted)
        ]

    def _choose_next(self, parts: int, wanted: Sequence[int]) -> list[list[Any]]:
        chosen = []
        while len(chosen) < self.batch_size:
            groups = self.groups(self.epoch)
            if self.used == len(groups):
                self.epoch, self.used = self.epoch + 1, 0
                continue
            chosen.append((self.epoch, groups[self.used]))
            self.used += 1
        bounds = [len(chosen) * part // parts for part in range(parts + 1)]
        return [chosen[bounds[number] : bounds[number + 1]] for number in wanted]

    def _make(self, epoch: int, numbers: np.ndarray) -> SpeechBatch:
        speeds = self._speeds if epoch == self._planned else self.augmentation.speeds(
            len(self.maker.rows), self.seed, epoch)  # fmt: skip
        return make_named(
            lambda which: self.maker.training_batch(
                which, speeds, self.augmentation, (self.seed, epoch)
            ),
            numbers,
            lambda number: f"utterance {self.maker.rows[number].id}",
        )

    def name_next(self, parts: int, wanted: Sequence[int]) -> str:
        """Return the ids of the next utterances."""
        state = self.state_dict()
        pieces = self._choose_next(parts, wanted)
        self.load_state_dict(state)
        ids = [self.maker.rows[n].id for piece in pieces for _, group in piece for n in group]
        return f"utterances {listed(ids)}"

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands."""
        return {"epoch": self.epoch, "used": self.used}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another stream stood."""
        self.epoch, self.used = state["epoch"], state["used"]
