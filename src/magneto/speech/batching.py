"""Groups of utterances of like length, padded to the longest of each.

An epoch's utterances are shuffled and cut in blocks; a block is sorted by frames and tokens and cut
in groups, within two budgets: of padded frames, which the encoder goes through, and of padded
frames times tokens, which the transducer loss goes through. The groups are shuffled. All is a
function of (seed, epoch), so that a run resumes exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.stream import (
    BatchStream,
    LazyBatches,
    epoch_order,
    in_blocks,
    listed,
    make_named,
    mixed_order,
)
from magneto.progress import SILENT, Progress
from magneto.speech.audio import NO_FRAMES, NON_FINITE
from magneto.speech.config import SpeechDataConfig
from magneto.speech.data import SpeechSplits, Utterances, load_speech
from magneto.speech.features import (
    CMVN_FILE,
    Augmentation,
    Features,
    FilterBank,
    Normalise,
    Normaliser,
    StoredFeatures,
    make_normaliser,
)
from magneto.speech.vocabulary import BLANK, SpeechVocabulary, make_vocabulary

# The fewest frames of a row, so that every front-end makes a feature of it.
MIN_FRAMES = 8
# Utterances whose frames differ by less, as a factor, are sorted by tokens.
LIKE_FRAMES = 1.1


def heard_frames(frames: int) -> int:
    """Return how many frames a model hears of a sound that has so many: a short one is filled up.

    Of a sound without any frame nothing is heard.
    """
    return max(frames, MIN_FRAMES) if frames else 0


def pad_features(features: Sequence[np.ndarray], mel_bins: int) -> Tensor:
    """Return utterances, (frames, mel bins) each, as (batch, frames, mel bins) with zeros."""
    padded = np.zeros((len(features), max(MIN_FRAMES, *map(len, features)), mel_bins), np.float32)
    for row, each in enumerate(features):
        padded[row, : len(each)] = each
    return torch.from_numpy(padded)


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
        self, source: Features, labels: Sequence[np.ndarray], normaliser: Normalise
    ) -> None:
        self.source, self.labels, self.normaliser = source, labels, normaliser
        self.ids, self.texts = source.utterances.ids, source.utterances.texts
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
        none = np.zeros((0, self.mel_bins), np.float32)
        features = pad_features([none if each is None else each for each in found], self.mel_bins)
        targets = np.full((len(numbers), max(len(each) for each in labels)), BLANK, np.int64)
        for row, label in enumerate(labels):
            targets[row, : len(label)] = label
        return SpeechBatch(
            features,
            torch.tensor(lengths),
            torch.from_numpy(targets),
            torch.tensor([len(label) for label in labels]),
            [(length, len(label)) for length, label in zip(lengths, labels, strict=True)],
            torch.tensor([float(each is not None) for each in found]),
            [self.ids[number] for number in numbers],
            problems,
            [self.texts[number] for number in numbers],
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


class PreparedSpeech:
    """Recordings ready for training.

    Args:
        config: Of the data.
        seed: Of built-in training sets.
        progress: Shows the slow work, which is done once.

    Attributes:
        splits: Training and validation utterances.
        vocabulary: Of the labels.
        filter_bank: From samples to features.
        normaliser: Of features.

    Raises:
        FileNotFoundError: If there is no such source, tokenizer or file of means.
        ValueError: If it has nothing to train on.
    """

    def __init__(self, config: SpeechDataConfig, seed: int, progress: Progress = SILENT) -> None:
        self.config, self.seed = config, seed
        self.splits: SpeechSplits = load_speech(config, seed, progress)
        for line in self.splits.describe(config.source):
            progress.say(line)
        train, validation = self.splits.train, self.splits.validation
        self.vocabulary: SpeechVocabulary = make_vocabulary(config, train.texts)
        self.filter_bank = FilterBank(config)
        source = self._source(train, progress)
        self.normaliser = make_normaliser(config, source, progress)
        self.train_maker = BatchMaker(source, self.vocabulary.encode(train.texts), self.normaliser)
        self.validation_maker = BatchMaker(
            self._source(validation, progress),
            self.vocabulary.encode(validation.texts),
            self.normaliser,
        )
        self._cut = partial(cut_groups, max_frames=config.max_frames, max_cells=config.max_cells)

    def _source(self, split: Utterances, progress: Progress) -> Features:
        if self.config.cached:
            return StoredFeatures(split, self.filter_bank, progress)
        return Features(split, self.filter_bank)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return batches of groups, varied anew in each epoch; a piece is a list of groups.

        Args:
            batch_size: Groups of a global batch.
            seed: Of the order and of what is varied.
        """
        maker, block = self.train_maker, self.config.block
        augmentation = Augmentation(self.config.augmentation, self.config.sample_rate)
        count = len(maker.ids)

        @lru_cache(maxsize=2)
        def speeds(epoch: int) -> np.ndarray:
            return augmentation.speeds(count, seed, epoch)

        def groups(epoch: int) -> list[tuple[int, np.ndarray]]:
            """Return the epoch, and the numbers of the utterances, of each of its groups."""
            lengths = maker.lengths(speeds(epoch))
            order = epoch_order(count, seed, epoch)
            random = np.random.default_rng([seed, epoch, 1])
            found: list[np.ndarray] = []
            for start in range(0, count, block):
                numbers = order[start : start + block]
                found += [numbers[group] for group in self._cut(lengths[numbers], random=random)]
            return [(epoch, found[place]) for place in random.permutation(len(found))]

        def make(piece: list[tuple[int, np.ndarray]]) -> list[SpeechBatch]:
            return [
                make_named(
                    partial(maker.training_batch, speeds=speeds(epoch), augmentation=augmentation,
                            seed=(seed, epoch)),
                    numbers,
                    lambda number: f"utterance {maker.ids[number]}",
                )
                for epoch, numbers in piece
            ]  # fmt: skip

        def describe(piece: list[tuple[int, np.ndarray]]) -> str:
            return f"utterances {listed([maker.ids[n] for _, group in piece for n in group])}"

        return BatchStream(in_blocks(groups, batch_size), make, describe)

    def validation_batches(self) -> Sequence[SpeechBatch]:
        """Return the groups of the validation split, in mixed order."""
        random = np.random.default_rng(0)
        groups = self._cut(self.validation_maker.lengths(), random=random)
        plans = [groups[number] for number in mixed_order(len(groups))]
        return LazyBatches(plans, self.validation_maker.evaluation_batch)

    def save(self, directory: Path) -> None:
        """Write what a run's model needs later: tokenizer and means."""
        (directory / "tokenizer").mkdir()
        self.vocabulary.save(directory / "tokenizer")
        if isinstance(self.normaliser, Normaliser):
            self.normaliser.save(directory / CMVN_FILE)
