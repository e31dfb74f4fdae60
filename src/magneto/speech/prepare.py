"""All that a task needs of its recordings: splits, vocabulary, normalisation, batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from magneto.data.batch import LazyBatches, mixed_order
from magneto.data.cache import cache_directory, fingerprint, is_kept, made_whole
from magneto.data.stream import BatchStream
from magneto.progress import SILENT, Progress
from magneto.speech.augmentation import Augmentation
from magneto.speech.batching import BatchMaker, SpeechBatch, cut_groups, group_stream
from magneto.speech.config import SpeechDataConfig
from magneto.speech.feature_sources import ComputedFeatures, FeatureSource, StoredFeatures
from magneto.speech.features import (
    CMVN_FILE,
    AnyNormaliser,
    FeatureStatistics,
    FilterBank,
    known_normaliser,
    load_normaliser,
)
from magneto.speech.splits import SpeechSplits, load_speech
from magneto.speech.utterances import Utterances, recording_states
from magneto.speech.vocabulary import SpeechVocabulary, make_vocabulary

# Training utterances that the global mean and variance are taken over, at most: 16 hours of
# LibriSpeech, after which they no longer change.
CMVN_UTTERANCES = 5000
CMVN_SEED = 0


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

    def _source(self, split: Utterances, progress: Progress) -> FeatureSource:
        computed = ComputedFeatures(split, self.filter_bank)
        return StoredFeatures(computed, progress) if self.config.cached else computed

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return groups of training utterances, `batch_size` groups at a time."""
        augmentation = Augmentation(self.config.augmentation, self.config.sample_rate)
        return group_stream(
            self.train_maker,
            augmentation,
            lambda lengths, random: self._cut(lengths, random=random),
            self.config.block,
            batch_size,
            seed,
        )

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
        self.normaliser.save(directory / CMVN_FILE)


def make_normaliser(
    config: SpeechDataConfig, source: FeatureSource, progress: Progress
) -> AnyNormaliser:
    """Make or load what normalises features, as `data.cmvn` says.

    Args:
        config: Of the data.
        source: Of training features, for global means.
        progress: Shows that they are gone through, which is done once.

    Raises:
        FileNotFoundError: If it names a file that is not there.
        ValueError: If there is no training utterance to take the mean of.
    """
    if config.cmvn != "global":
        return known_normaliser(config)
    bins = config.features.mel_bins
    # Not the split's digest: other recordings of the same words and lengths have other means.
    contents = recording_states(source.utterances.rows)
    name = fingerprint(contents, repr(config.features), config.sample_rate)
    held = cache_directory() / f"speech-cmvn-{name}"
    if not is_kept(held, progress):
        statistics = FeatureStatistics(bins)
        count = len(source.utterances)
        chosen = np.random.default_rng(CMVN_SEED).permutation(count)[:CMVN_UTTERANCES]
        for done, number in enumerate(chosen, 1):
            features, problem = source.features(number)
            if not problem and np.isfinite(features).all():
                statistics.add(features)
            progress.update("taking means of features", done, len(chosen))
        with made_whole(held) as aside:
            statistics.normaliser().save(aside / CMVN_FILE)
    return load_normaliser(held / CMVN_FILE, bins)
