"""Vocabulary and batches of speech recognition.

Label 0 is blank; the other labels are a tokenizer's tokens. In each epoch, the utterances are
shuffled and divided into blocks. Each block is sorted by length and cut into groups. The utterances
of a group are padded to the same length. `max_frames` and `max_cells` limit the size of a group.
Seed and epoch determine all groups, so that a resumed run gets the same groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from magneto.data.cache import (
    cache_directory,
    content_digest,
    create_cached,
    fingerprint,
    is_cached,
)
from magneto.data.sources import check_two_sources
from magneto.data.stream import (
    BatchStream,
    LazyBatches,
    cut_groups,
    epoch_order,
    evaluation_order,
    group_stream,
    sort_by_length,
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
from magneto.speech.features import Augmentation, Features, FilterBank

UNKNOWN = "<unk>"
# Tokenizers that are trained on the training transcripts.
TRAINED = ("characters", "bpe", "sentencepiece")
# Maximum number of training transcripts for SentencePiece: all of LibriSpeech.
SAMPLE = 300_000
# Minimum number of frames, so that every front-end yields an encoder frame.
MIN_FRAMES = 8
# Utterances whose numbers of frames differ by less than this factor are sorted by tokens.
LIKE_FRAMES = 1.1


class SpeechVocabulary:
    """Tokenizer whose token ids are shifted by one, because label 0 is the blank.

    Attributes:
        tokenizer: Tokenizer of the transcripts.
        size: Number of labels: one per token, and blank.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.vocab_size + 1

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the labels of each text, int32, without blank."""
        return [np.array(t, np.int32) + 1 for t in self.tokenizer.encode(list(texts))]

    def decode(self, labels: Iterable[int]) -> str:
        """Return the text of labels; blanks are ignored."""
        return self.tokenizer.decode([int(label) - 1 for label in labels if label != BLANK])

    def pieces(self) -> list[str]:
        """Return the text of each label; "" for blank."""
        return ["", *self.tokenizer.pieces()]


def build_vocabulary(config: SpeechDataConfig, texts: Sequence[str]) -> SpeechVocabulary:
    """Load the tokenizer of `data.tokenizer`, or train a tokenizer on `texts`.

    Trained tokenizers are cached.

    Raises:
        FileNotFoundError: If the configured tokenizer does not exist.
        ValueError: If the transcripts are too few for the vocabulary size.
    """
    if config.tokenizer not in TRAINED:
        return SpeechVocabulary(load_tokenizer(config.tokenizer))
    digest = content_digest(*(text.encode("utf-8", errors="surrogatepass") for text in texts))
    name = fingerprint(digest, config.tokenizer, config.vocab_size)
    cache = cache_directory() / f"speech-tokenizer-{name}"
    if not is_cached(cache):
        with create_cached(cache) as directory:
            if config.tokenizer == "sentencepiece":
                model = train_sentencepiece(texts, "unigram", config.vocab_size, SAMPLE)
                (directory / "tokenizer.model").write_bytes(model)
            elif config.tokenizer == "bpe":
                train_bpe(texts, config.vocab_size, directory / "tokenizer.json")
            else:
                train_characters(texts, directory / "tokenizer.json")
    return SpeechVocabulary(load_tokenizer(cache))


def train_characters(texts: Iterable[str], path: Path) -> None:
    tokenizers = import_tokenizers()
    characters = sorted({character for text in texts for character in text})
    numbers = {piece: number for number, piece in enumerate([END, UNKNOWN, *characters])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, UNKNOWN))
    each = tokenizers.Regex(r"[\s\S]")
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(each, "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    inner.add_special_tokens([END, UNKNOWN])
    inner.save(str(path))


def padded_frames(frames: int) -> int:
    """Return the number of frames after padding to `MIN_FRAMES`; 0 frames stay 0."""
    return max(frames, MIN_FRAMES) if frames else 0


def pad_features(features: Sequence[np.ndarray], mel_bins: int) -> Tensor:
    """Pad utterances, each (frames, mel bins), with zeros to (batch, frames, mel bins)."""
    padded = np.zeros((len(features), max(MIN_FRAMES, *map(len, features)), mel_bins), np.float32)
    for row, each in enumerate(features):
        padded[row, : len(each)] = each
    return torch.from_numpy(padded)


@dataclass(frozen=True)
class SpeechBatch:
    """Padded group of utterances.

    An unusable utterance has weight 0, `MIN_FRAMES` frames of zeros and no labels. The loss
    excludes unusable utterances. The hypothesis of an unusable utterance is empty.

    Attributes:
        features: Normalised features, (batch, frames, mel bins), float32, padded with 0.
        feature_lengths: Number of frames, (batch,), int64.
        targets: Labels, (batch, labels), int64, padded with blank (0).
        target_lengths: Number of labels, (batch,), int64.
        sizes: Number of frames and number of labels of each utterance, as integers.
        weights: 1 for a usable utterance and 0 for an unusable one, (batch,), float32.
        problems: Problem of each utterance; "" without a problem.
        frames: Total number of frames without padding.
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
        """Total number of frames, padding included."""
        return self.features.shape[0] * self.features.shape[1]


class BatchMaker:
    """Builder of padded groups from a split's utterances."""

    def __init__(self, source: Features, vocabulary: SpeechVocabulary) -> None:
        self.source = source
        self.ids, self.texts = (source.table.values(name) for name in ("id", "text"))
        self.labels = vocabulary.encode(self.texts)

    def groups(
        self,
        numbers: np.ndarray,
        config: SpeechDataConfig,
        random: np.random.Generator,
        speeds: np.ndarray | float = 1.0,
    ) -> list[np.ndarray]:
        """Return groups of utterances of similar length, as arrays of indices, shortest first.

        `numbers` are the indices of the utterances to group. `speeds` is one speed factor for the
        whole split, or an array with a factor for each utterance.
        """
        frames = np.maximum(self.source.frames(speeds), MIN_FRAMES)
        labels = np.array([len(each) for each in self.labels], np.int64)
        like = (np.log(frames[numbers]) / np.log(LIKE_FRAMES)).astype(int)
        order = numbers[sort_by_length(like, labels[numbers], random)]
        budgets = (config.max_frames, config.max_cells)
        return cut_groups(order, np.stack([frames, labels + 1], 1), budgets)

    def batch(
        self, numbers: np.ndarray, read: Callable[[int], tuple[np.ndarray, str]]
    ) -> SpeechBatch:
        """Return a padded batch of the utterances with the indices `numbers`.

        `read(index)` returns an utterance's features and its recording's problem ("" if none). An
        utterance without frames gets weight 0.
        """
        found = [read(number) for number in numbers.tolist()]
        features, problems = map(list, zip(*found, strict=True))
        ids, texts, labels = (
            [each[number] for number in numbers] for each in (self.ids, self.texts, self.labels)
        )
        return pad_batch(features, labels, ids, texts, problems)


def pad_batch(
    features: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    ids: list[str],
    texts: list[str],
    problems: list[str],
) -> SpeechBatch:
    """Return a padded batch of utterances.

    Each utterance has an array of features (frames, mel bins) and an array of labels (labels,).
    """
    labels = [own if len(each) else own[:0] for own, each in zip(labels, features, strict=True)]
    lengths = [max(len(each), MIN_FRAMES) for each in features]
    targets = [torch.from_numpy(label).long() for label in labels]
    return SpeechBatch(
        pad_features(features, features[0].shape[1]),
        torch.tensor(lengths),
        pad_sequence(targets, batch_first=True, padding_value=BLANK),
        torch.tensor([len(label) for label in labels]),
        [(length, len(label)) for length, label in zip(lengths, labels, strict=True)],
        torch.tensor([float(len(each) > 0) for each in features]),
        ids,
        problems,
        texts,
        sum(map(len, features)),
    )


class PreparedSpeech:
    """Splits, vocabulary, features and normaliser for a data configuration.

    `seed` determines the built-in training sets.
    """

    def __init__(self, config: SpeechDataConfig, seed: int, progress: Progress = SILENT) -> None:
        self.config = config
        self.splits = load_speech(config, seed, progress)
        for line in self.splits.describe(config.source):
            progress.say(line)
        train, validation = self.splits.train, self.splits.validation
        if config.tokenizer in TRAINED or config.cmvn == "global":
            check_two_sources(config)
        self.vocabulary = build_vocabulary(config, train.values("text"))
        self.filter_bank = FilterBank(config)
        source = Features(train, self.filter_bank, progress)
        self.normaliser = source.normaliser
        held = Features(validation, self.filter_bank, progress, self.normaliser)
        self.train_maker, self.validation_maker = (
            BatchMaker(each, self.vocabulary) for each in (source, held)
        )

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return batches of `batch_size` groups; each epoch augments the utterances anew.

        The seed determines the order and the augmentation.

        Raises:
            ValueError: If the training source is also the validation source.
        """
        maker, config = self.train_maker, self.config
        augmentation = Augmentation(config.augmentation, config.sample_rate)
        count = len(maker.ids)
        check_two_sources(config)

        @lru_cache(maxsize=2)
        def speeds(epoch: int) -> np.ndarray:
            return augmentation.speeds(count, seed, epoch)

        def groups(epoch: int) -> list[np.ndarray]:
            """Return groups as arrays with rows (draw, number). The draw is the epoch."""
            order = epoch_order(count, seed, epoch)
            random = np.random.default_rng([seed, epoch, 1])
            found: list[np.ndarray] = []
            for start in range(0, count, config.block):
                numbers = order[start : start + config.block]
                found += maker.groups(numbers, config, random, speeds(epoch))
            return [with_draw(found[place], epoch) for place in random.permutation(len(found))]

        def make(rows: np.ndarray) -> SpeechBatch:
            epoch = int(rows[0, 0])
            its = speeds(epoch)
            return maker.batch(
                rows[:, 1],
                lambda n: augmentation.utterance(maker.source, n, float(its[n]), (seed, epoch, n)),
            )

        return group_stream(groups, batch_size, make, lambda row: f"utterance {maker.ids[row[1]]}")

    def validation_batches(self) -> LazyBatches:
        maker, random = self.validation_maker, np.random.default_rng(0)
        groups = maker.groups(np.arange(len(maker.ids)), self.config, random)
        plans = [groups[number] for number in evaluation_order(len(groups))]
        return LazyBatches(plans, lambda numbers: maker.batch(numbers, maker.source.normalised))
