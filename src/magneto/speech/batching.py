"""Labels of transcripts, and groups of utterances of like length, padded to the longest of each.

Label 0 is blank; the others are a tokenizer's tokens. An epoch's utterances are shuffled and cut in
blocks; a block is sorted by frames and tokens and cut in groups, within two budgets: of padded
frames, which the encoder goes through, and of padded frames times tokens, which the transducer loss
goes through. The groups are shuffled. All is a function of (seed, epoch), so that a run resumes
exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from magneto.data.cache import cache_directory, content_digest, fingerprint, is_kept, made_whole
from magneto.data.stream import (
    BatchStream,
    LazyBatches,
    cut_groups,
    epoch_order,
    group_stream,
    mixed_order,
    with_draw,
)
from magneto.data.tokenizer import (
    END,
    Tokenizer,
    import_tokenizers,
    load_tokenizer,
    train_bpe,
    train_sentencepiece,
)
from magneto.progress import SILENT, Progress
from magneto.speech.config import BLANK, SpeechDataConfig
from magneto.speech.data import load_speech
from magneto.speech.features import (
    CMVN_FILE,
    Augmentation,
    Features,
    FilterBank,
    Normalise,
    Normaliser,
    make_normaliser,
)

UNKNOWN = "<unk>"
# Tokenizers that are learnt from the training transcripts.
TRAINED = ("characters", "bpe", "sentencepiece")
# Transcripts that SentencePiece learns from, at most: all of LibriSpeech's.
SAMPLE = 300_000
# The fewest frames of a row, so that every front-end makes a feature of it.
MIN_FRAMES = 8
# Utterances whose frames differ by less, as a factor, are sorted by tokens.
LIKE_FRAMES = 1.1


class SpeechVocabulary:
    """A tokenizer whose numbers are moved up by one, so that 0 is blank with any tokenizer.

    Attributes:
        tokenizer: Of the transcripts.
        size: Tokens and blank.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.vocab_size + 1

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the labels of each text, int32; never blank."""
        return [np.array(t, np.int32) + 1 for t in self.tokenizer.encode(list(texts))]

    def decode(self, labels: Iterable[int]) -> str:
        """Return the text of labels; blanks are left out."""
        return self.tokenizer.decode([int(label) - 1 for label in labels if label != BLANK])

    def pieces(self) -> list[str]:
        """Return what each label stands for; nothing for blank."""
        return ["", *self.tokenizer.pieces()]


def make_vocabulary(config: SpeechDataConfig, texts: Sequence[str]) -> SpeechVocabulary:
    """Load the tokenizer that a configuration names, or learn it from transcripts, once.

    Raises:
        FileNotFoundError: If there is no such tokenizer.
        ValueError: If the transcripts are too few for the vocabulary.
    """
    if config.tokenizer not in TRAINED:
        return SpeechVocabulary(load_tokenizer(config.tokenizer))
    digest = content_digest(*(text.encode("utf-8", errors="surrogatepass") for text in texts))
    name = fingerprint(digest, config.tokenizer, config.vocab_size)
    held = cache_directory() / f"speech-tokenizer-{name}"
    if not is_kept(held):
        with made_whole(held) as aside:
            if config.tokenizer == "sentencepiece":
                model = train_sentencepiece(texts, "unigram", config.vocab_size, SAMPLE)
                (aside / "tokenizer.model").write_bytes(model)
            elif config.tokenizer == "bpe":
                train_bpe(texts, config.vocab_size, aside / "tokenizer.json")
            else:
                train_characters(texts, aside / "tokenizer.json")
    return SpeechVocabulary(load_tokenizer(held))


def train_characters(texts: Iterable[str], path: Path) -> None:
    """Write a tokenizer.json with a token per character of the texts; others become `<unk>`."""
    tokenizers = import_tokenizers()
    characters = sorted({character for text in texts for character in text})
    numbers = {piece: number for number, piece in enumerate([END, UNKNOWN, *characters])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, UNKNOWN))
    each = tokenizers.Regex(r"[\s\S]")
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(each, "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    inner.add_special_tokens([END, UNKNOWN])
    inner.save(str(path))


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

    def groups(
        self,
        numbers: np.ndarray,
        config: SpeechDataConfig,
        random: np.random.Generator,
        speeds: np.ndarray | float = 1.0,
    ) -> list[np.ndarray]:
        """Sort utterances by length and cut them into groups, short ones first.

        Args:
            numbers: Of the utterances.
            config: Of the largest groups.
            random: Orders utterances of equal lengths.
            speeds: At which every utterance of the split is played.
        """
        shuffled = numbers[random.permutation(len(numbers))]
        frames = np.maximum(self.source.frames(speeds), MIN_FRAMES)
        labels = np.array([len(each) for each in self.labels], np.int64)
        like = (np.log(frames[shuffled]) / np.log(LIKE_FRAMES)).astype(int)
        # Labels rise and fall in turn, so that they don't jump from one kind of length to the next.
        falling = np.where(like % 2, labels[shuffled], -labels[shuffled])
        order = shuffled[np.lexsort((falling, like))]
        budgets = (config.max_frames, config.max_cells)
        return cut_groups(order, np.stack([frames, labels + 1], 1), budgets)

    def evaluation_batch(self, numbers: np.ndarray) -> SpeechBatch:
        """Return a group of utterances as they are; of broken ones, what can be read."""
        source, normaliser = self.source, self.normaliser
        return self._padded(numbers, [source.normalised(n, normaliser) for n in numbers.tolist()])

    def training_batch(
        self,
        numbers: np.ndarray,
        speeds: np.ndarray,
        augmentation: Augmentation,
        seed: tuple[int, int],
    ) -> SpeechBatch:
        """Return a group of utterances, varied; broken ones are left out.

        Speeds are those of all utterances of the split; the seed is the run's, and the epoch.
        """
        vary = partial(augmentation.utterance, self.source, self.normaliser)
        found = [vary(n, float(speeds[n]), (*seed, n)) for n in numbers.tolist()]
        return self._padded(numbers, found)

    def _padded(self, numbers: np.ndarray, found: Sequence[tuple[np.ndarray, str]]) -> SpeechBatch:
        features = [each for each, _ in found]
        labels = [
            self.labels[number] if len(each) else self.labels[number][:0]
            for number, each in zip(numbers, features, strict=True)
        ]
        lengths = [max(len(each), MIN_FRAMES) for each in features]
        targets = np.full((len(numbers), max(len(each) for each in labels)), BLANK, np.int64)
        for row, label in enumerate(labels):
            targets[row, : len(label)] = label
        return SpeechBatch(
            pad_features(features, self.source.mel_bins),
            torch.tensor(lengths),
            torch.from_numpy(targets),
            torch.tensor([len(label) for label in labels]),
            [(length, len(label)) for length, label in zip(lengths, labels, strict=True)],
            torch.tensor([float(len(each) > 0) for each in features]),
            [self.ids[number] for number in numbers],
            [problem for _, problem in found],
            [self.texts[number] for number in numbers],
            sum(map(len, features)),
        )


class PreparedSpeech:
    """Recordings ready for training.

    Args:
        config: Of the data.
        seed: Of built-in training sets.
        progress: Shows the slow work, which is done once.

    Raises:
        FileNotFoundError: If there is no such source, tokenizer or file of means.
        ValueError: If it has nothing to train on.
    """

    def __init__(self, config: SpeechDataConfig, seed: int, progress: Progress = SILENT) -> None:
        self.config = config
        self.splits = load_speech(config, seed, progress)
        for line in self.splits.describe(config.source):
            progress.say(line)
        train, validation = self.splits.train, self.splits.validation
        self.vocabulary = make_vocabulary(config, train.texts)
        self.filter_bank = FilterBank(config)
        source = Features(train, self.filter_bank, progress)
        self.normaliser = make_normaliser(config, source, progress)
        held = Features(validation, self.filter_bank, progress)
        self.train_maker, self.validation_maker = (
            BatchMaker(each, self.vocabulary.encode(each.utterances.texts), self.normaliser)
            for each in (source, held)
        )

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return batches of groups, varied anew in each epoch; a piece is a list of groups.

        Args:
            batch_size: Groups of a global batch.
            seed: Of the order and of what is varied.
        """
        maker, config = self.train_maker, self.config
        augmentation = Augmentation(config.augmentation, config.sample_rate)
        count = len(maker.ids)

        @lru_cache(maxsize=2)
        def speeds(epoch: int) -> np.ndarray:
            return augmentation.speeds(count, seed, epoch)

        def groups(epoch: int) -> list[np.ndarray]:
            """Return the groups of an epoch, rows (epoch, number of the utterance)."""
            order = epoch_order(count, seed, epoch)
            random = np.random.default_rng([seed, epoch, 1])
            found: list[np.ndarray] = []
            for start in range(0, count, config.block):
                numbers = order[start : start + config.block]
                found += maker.groups(numbers, config, random, speeds(epoch))
            return [with_draw(found[place], epoch) for place in random.permutation(len(found))]

        def make(rows: np.ndarray) -> SpeechBatch:
            epoch = int(rows[0, 0])
            return maker.training_batch(rows[:, 1], speeds(epoch), augmentation, (seed, epoch))

        return group_stream(groups, batch_size, make, lambda row: f"utterance {maker.ids[row[1]]}")

    def validation_batches(self) -> Sequence[SpeechBatch]:
        """Return the groups of the validation split, in mixed order."""
        maker, random = self.validation_maker, np.random.default_rng(0)
        groups = maker.groups(np.arange(len(maker.ids)), self.config, random)
        plans = [groups[number] for number in mixed_order(len(groups))]
        return LazyBatches(plans, maker.evaluation_batch)

    def save(self, directory: Path) -> None:
        """Write what a run's model needs later: tokenizer and means."""
        (directory / "tokenizer").mkdir()
        self.vocabulary.tokenizer.save(directory / "tokenizer")
        if isinstance(self.normaliser, Normaliser):
            self.normaliser.save(directory / CMVN_FILE)
