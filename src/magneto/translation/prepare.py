"""Vocabulary, cache and batches of parallel text.

A batch is a list of groups. A group contains sentences of similar length, and all groups have about
the same number of tokens. A block of sentences is sorted by length and cut into groups, which are
shuffled. The sampling temperature sets the share of each direction in a block. All sentences of a
direction are used once before any is repeated. The seed and the block's number determine all
groups, so that a resumed run gets the same groups.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from magneto.config import nearest
from magneto.data.cache import (
    add_alias,
    cache_directory,
    content_digest,
    create_cached,
    fingerprint,
    is_cached,
    map_array,
)
from magneto.data.problems import EMPTY, Counts
from magneto.data.stream import (
    BatchStream,
    EpochPlan,
    cut_groups,
    group_stream,
    sort_by_length,
)
from magneto.data.tokenizer import Tokenizer, load_tokenizer, train_bpe, train_sentencepiece
from magneto.files import read_json, user_path
from magneto.functional.cross_entropy import IGNORED
from magneto.progress import Progress
from magneto.translation.config import (
    BEYOND_LIMIT,
    KEPT,
    READ,
    TOO_LONG,
    ParallelDataConfig,
    required_languages,
)
from magneto.translation.text import LanguagePair, TrainingText, parallel_fingerprint

SPLITS = ("train", "validation")
# Languages of the tags, beside a saved tokenizer.
TAGS_FILE = "tags.txt"
# Sentence pairs tokenised at a time.
BATCH = 1024
# Tokenizers that are trained on the text.
TRAINED = ("bpe", "sentencepiece")
# Training characters of a tokenizer, divided evenly among language pairs.
TOKENIZER_CHARACTERS = 50_000_000
# Sentences whose tokens are counted at a time; an even number.
SIDES = 1 << 20

Group = dict[str, Any]
"""Padded sentence pairs. `source` and `source_mask` have shape (batch, source length). `target`,
the decoder's input, and `targets`, its labels, have shape (batch, target length). `predicted`
counts the labels without padding. `cells` counts the positions of source and target. `real` counts
those without padding."""


class TranslationVocabulary:
    """Tokenizer of all languages, with a tag for each target language.

    The ids of tags follow the ids of the tokenizer, in the order of `languages`. Tokenised text
    never contains a tag. `end` is also the first input of the decoder.
    """

    def __init__(self, tokenizer: Tokenizer, languages: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.languages = tuple(languages)
        self.size = tokenizer.vocab_size + len(self.languages)
        self.end = tokenizer.end

    def tag(self, language: str) -> int:
        """Return the id of a language's tag. Raise ValueError for an unknown language."""
        if language not in self.languages:
            hint, known = nearest(language, self.languages), ", ".join(self.languages)
            raise ValueError(f"no language {language!r}{hint} (the model has {known})")
        return self.tokenizer.vocab_size + self.languages.index(language)

    def encode_source(self, texts: list[str], language: str) -> list[list[int]]:
        """Return encoder inputs (tag, tokens, end token) for translation into `language`."""
        tag = self.tag(language)
        return [[tag, *tokens, self.end] for tokens in self.tokenizer.encode(texts)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens up to the end token, without tags."""
        generated = takewhile(lambda token: token != self.end, tokens)
        return self.tokenizer.decode([int(n) for n in generated if n < self.tokenizer.vocab_size])

    def save(self, directory: Path) -> None:
        """Write tokenizer and languages into an existing directory."""
        self.tokenizer.save(directory)
        (directory / TAGS_FILE).write_text("\n".join(self.languages) + "\n", encoding="utf-8")


def load_vocabulary(directory: Path) -> TranslationVocabulary:
    """Load a saved vocabulary. Raise FileNotFoundError if a file is missing."""
    return TranslationVocabulary(load_tokenizer(directory), read_tags(directory))


def read_tags(directory: Path) -> list[str]:
    """Return the languages of a saved vocabulary.

    Raise FileNotFoundError if the file of languages is missing.
    """
    path = directory / TAGS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{directory} is not a translation vocabulary: no {TAGS_FILE}")
    return path.read_text(encoding="utf-8").split()


@dataclass(frozen=True)
class ParallelSplit:
    """Tokenised split of a corpus.

    `tokens` has the tokens of all sentences, without tags and end tokens. The two sentences of an
    example are stored one after the other. Sentence n has the tokens from `offsets[n]` to
    `offsets[n + 1]`. `ranges` has the range of examples of each language pair.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    ranges: dict[LanguagePair, tuple[int, int]]

    def side(self, example: int, side: int) -> np.ndarray:
        """Return the tokens of the first (`side` 0) or second (`side` 1) sentence."""
        place = 2 * example + side
        return self.tokens[self.offsets[place] : self.offsets[place + 1]]


@dataclass(frozen=True)
class PreparedParallel:
    """Filtered and tokenised corpus.

    `counts` says how many sentence pairs were kept and left out, for each split and language pair.
    `digest` is a hash of all tokens. A run resumes only if this hash is unchanged.
    """

    vocabulary: TranslationVocabulary
    directions: list[LanguagePair]
    train: ParallelSplit
    validation: ParallelSplit
    counts: dict[str, dict[LanguagePair, Counts]]
    digest: str

    def describe(self, source: str) -> Iterator[str]:
        """Yield lines that report the counts of each split."""
        for split, held, name in (
            ("train", self.train, ""), ("validation", self.validation, "validation: "),
        ):  # fmt: skip
            counts = self.counts[split]
            if any(each[READ] for each in counts.values()):
                for pair, each in counts.items():
                    yield f"{name}{'-'.join(pair)}: {each.describe(KEPT, READ)}"
                kept = sum(each[KEPT] for each in counts.values())
                yield (f"{name or f'{source}: '}{len(self.directions)} directions, "
                       f"{kept:,} pairs, {len(held.tokens):,} tokens")  # fmt: skip


def prepare_parallel(config: ParallelDataConfig, progress: Progress) -> PreparedParallel:
    """Filter and tokenise a source, or open the cache.

    Raises:
        FileNotFoundError: If there is no such source or tokenizer.
        ValueError: If the source has no text for a direction, or no validation text.
    """
    cache = _cache_path(config)
    if not is_cached(cache, progress):
        with create_cached(cache) as directory:
            CacheWriter(config, progress).write(directory)
    # A run stores its vocabulary, which must lead to the same cache.
    add_alias(cache, _cache_path(replace(config, tokenizer=str(cache))))
    return _open(cache)


def _cache_path(config: ParallelDataConfig) -> Path:
    sources = [config.source, config.validation_source or config.source]
    name = fingerprint(
        [
            parallel_fingerprint(name, config.languages, required_languages(config))
            for name in sources
        ],
        (config.languages, config.pivot_language, config.directions),
        _tokenizer_name(config),
        config.validation_source is None and config.validation_fraction,
        (config.validation_limit, config.max_length, config.max_ratio),
    )
    return cache_directory() / f"parallel-{name}"


def _tokenizer_name(config: ParallelDataConfig) -> Any:
    if config.tokenizer in TRAINED:
        lines = config.tokenizer_lines if config.tokenizer == "sentencepiece" else None
        return (config.tokenizer, config.vocab_size, lines)
    path = load_tokenizer(config.tokenizer).path  # raises before any work if there is none
    content = "bytes" if path is None else hashlib.blake2b(path.read_bytes()).hexdigest()
    return (content, stored_languages(config))


def stored_languages(config: ParallelDataConfig) -> list[str] | None:
    """Return the languages of an existing vocabulary; None if it has no file of languages."""
    path = user_path(config.tokenizer)
    folder = path if path.is_dir() else path.parent
    has_tags = config.tokenizer not in TRAINED and (folder / TAGS_FILE).is_file()
    return read_tags(folder) if has_tags else None


class CacheWriter:
    """Writer of a corpus's cache."""

    def __init__(self, config: ParallelDataConfig, progress: Progress) -> None:
        self.config, self.progress = config, progress
        self.text = TrainingText(config)

    def write(self, directory: Path) -> None:
        tokenizer, text = self._tokenizer(directory), self.text
        languages = stored_languages(self.config) or sorted({n for p in text.pairs for n in p})
        vocabulary = TranslationVocabulary(tokenizer, languages)
        for _, target in text.directions:
            vocabulary.tag(target)  # raises if an existing vocabulary lacks the language
        vocabulary.save(directory)
        kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
        index: dict[str, Any] = {"dtype": np.dtype(kind).name, "directions": text.directions}
        seen: dict[LanguagePair, set[int]] = {}
        for split in ("validation", "train"):
            index[split] = self._write(split, directory, tokenizer, kind, seen)
        files = (directory / f"{split}.tokens.bin" for split in SPLITS)
        index["digest"] = content_digest(*(map_array(path, kind) for path in files))
        (directory / "index.json").write_text(json.dumps(index), encoding="utf-8")

    def _write(
        self, split: str, directory: Path, tokenizer: Tokenizer, kind: Any, seen: dict
    ) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        with (
            (directory / f"{split}.tokens.bin").open("wb") as tokens,
            (directory / f"{split}.offsets.bin").open("wb") as offsets,
        ):
            np.zeros(1, np.int64).tofile(offsets)
            place = example = 0
            for pair in self.text.pairs:
                counts, start = Counts(), example
                # Hashes of training sentences are many: free them after each language pair.
                hashes = seen.pop(pair, set())
                for sides in self._batches(pair, split, tokenizer, counts, hashes):
                    np.fromiter(chain.from_iterable(sides), kind).tofile(tokens)
                    ends = place + np.cumsum([len(side) for side in sides], dtype=np.int64)
                    ends.tofile(offsets)
                    place, example = int(ends[-1]), example + len(sides) // 2
                    self.progress.update(f"tokenising {split} pairs", example, None)
                if split == "validation":
                    seen[pair] = hashes
                records.append({"pair": pair, "range": (start, example),
                                "counts": counts.plain()})  # fmt: skip
        if example == 0 and (split == "validation" or self.text.has_training):
            raise ValueError(f"{self.config.source} has no {split} text after filtering "
                             "(data.max_length, data.max_ratio)")  # fmt: skip
        return records

    def _batches(
        self, pair: LanguagePair, split: str, tokenizer: Tokenizer, counts: Counts, seen: set[int]
    ) -> Iterator[list[list[int]]]:
        texts = self.text.texts(pair, split, counts, seen)
        limit = self.config.validation_limit if split == "validation" else None
        while batch := list(islice(texts, BATCH)):
            encoded = tokenizer.encode([side for sentences in batch for side in sentences])
            sides: list[list[int]] = []
            for one, other in zip(encoded[::2], encoded[1::2], strict=True):
                short, long = sorted((len(one), len(other)))
                if counts[KEPT] == limit:
                    counts[BEYOND_LIMIT] += 1
                elif short == 0:
                    counts[EMPTY] += 1
                elif long + 2 > self.config.max_length:  # with tag and end
                    counts[TOO_LONG] += 1
                else:
                    counts[KEPT] += 1
                    sides += one, other
            if sides:
                yield sides
            if counts[KEPT] == limit:
                break

    def _tokenizer(self, directory: Path) -> Tokenizer:
        name, size = self.config.tokenizer, self.config.vocab_size
        if name not in TRAINED:
            return load_tokenizer(name)
        texts = self._tokenizer_texts()
        if name == "sentencepiece":
            lines = self.config.tokenizer_lines
            model = train_sentencepiece(texts, "unigram", size, lines, self.progress)
            (directory / "tokenizer.model").write_bytes(model)
        else:
            train_bpe(texts, size, directory / "tokenizer.json", progress=self.progress)
        return load_tokenizer(directory)

    def _tokenizer_texts(self) -> Iterator[str]:
        for pair in self.text.pairs:
            left = TOKENIZER_CHARACTERS // len(self.text.pairs)
            for texts in self.text.unfiltered(pair, "train", Counts()):
                left -= sum(map(len, texts))
                if left < 0:
                    break
                yield from texts


def _open(directory: Path) -> PreparedParallel:
    index = read_json(directory / "index.json")
    splits = {}
    for split in SPLITS:
        tokens = map_array(directory / f"{split}.tokens.bin", index["dtype"])
        offsets = map_array(directory / f"{split}.offsets.bin", np.int64)
        ranges = {tuple(found["pair"]): tuple(found["range"]) for found in index[split]}
        splits[split] = ParallelSplit(tokens, offsets, ranges)
    counts = {
        split: {tuple(found["pair"]): Counts.of_plain(found["counts"]) for found in index[split]}
        for split in SPLITS
    }
    directions = [tuple(direction) for direction in index["directions"]]
    vocabulary = load_vocabulary(directory)
    return PreparedParallel(vocabulary, directions, **splits, counts=counts, digest=index["digest"])


def temperature_shares(sizes: Sequence[int], temperature: float) -> np.ndarray:
    """Return the probabilities of directions, proportional to size ** (1 / temperature)."""
    weights = np.asarray(sizes, np.float64) ** (1 / temperature)
    return weights / weights.sum()


def length_groups(
    lengths: np.ndarray, budget: int, random: np.random.Generator
) -> list[np.ndarray]:
    """Group examples of similar length, and return the indices of each group.

    `lengths` has the lengths of source and target, (examples, 2). In a group, the number
    of examples times the longest length is at most `budget`. Groups of short examples come first.
    Examples of equal length are in random order.
    """
    order = sort_by_length(lengths[:, 1], lengths[:, 0], random)
    return cut_groups(order, lengths.max(1, keepdims=True), [budget])


class GroupMaker:
    """Builder of padded groups from the examples of a split.

    Directions without examples are left out.
    """

    def __init__(
        self,
        split: ParallelSplit,
        vocabulary: TranslationVocabulary,
        directions: Sequence[LanguagePair],
    ) -> None:
        self.split, self.end = split, vocabulary.end
        pairs = [(min(direction), max(direction)) for direction in directions]
        ranges = [split.ranges.get(pair, (0, 0)) for pair in pairs]
        nonempty = [n for n, (start, stop) in enumerate(ranges) if stop > start]
        self.directions = [directions[n] for n in nonempty]
        self.ranges = [ranges[n] for n in nonempty]
        self.sizes = [stop - start for start, stop in self.ranges]
        self.tags = [vocabulary.tag(target) for _, target in self.directions]
        self.flipped = [source > target for source, target in self.directions]

    def lengths(self, direction: int, numbers: np.ndarray) -> np.ndarray:
        """Return source and target lengths (examples, 2), with tag and end tokens."""
        start, stop = self.ranges[direction]
        offsets = self.split.offsets[2 * start : 2 * stop + 1]
        sizes = np.diff(offsets).reshape(-1, 2)[numbers]
        return (sizes[:, ::-1] if self.flipped[direction] else sizes) + np.array([2, 1])

    def target_counts(self, size: int) -> np.ndarray:
        """Return how often each token, including the end token, is a target, (size,)."""
        counts = np.zeros(size, np.int64)
        for (start, stop), flipped in zip(self.ranges, self.flipped, strict=True):
            offsets = self.split.offsets[2 * start : 2 * stop + 1]
            for first in range(0, len(offsets) - 1, SIDES):
                part = offsets[first : first + SIDES + 1]
                side = np.arange(len(part) - 1) % 2 != flipped
                places = np.repeat(side, np.diff(part))
                counts += np.bincount(self.split.tokens[part[0] : part[-1]][places], minlength=size)
            counts[self.end] += stop - start
        return counts

    def make(self, directions: np.ndarray, numbers: np.ndarray) -> Group:
        """Return a group of padded examples.

        `directions` and `numbers` have the direction and the index of each example.
        """
        rows = [self.sides(d, n) for d, n in zip(directions, numbers, strict=True)]
        widths = [max(len(row[side]) for row in rows) for side in (0, 1)]
        source = np.full((len(rows), widths[0] + 2), self.end)
        mask = np.zeros(source.shape, bool)
        target = np.full((len(rows), widths[1] + 1), self.end)
        targets = np.full(target.shape, IGNORED)
        for row, (direction, (one, other)) in enumerate(zip(directions, rows, strict=True)):
            source[row, 0] = self.tags[direction]
            source[row, 1 : len(one) + 1] = one
            mask[row, : len(one) + 2] = True
            target[row, 1 : len(other) + 1] = other
            targets[row, : len(other)] = other
            targets[row, len(other)] = self.end
        tensors = {"source": source, "source_mask": mask, "target": target, "targets": targets}
        predicted = sum(len(other) + 1 for _, other in rows)
        return {name: torch.from_numpy(value) for name, value in tensors.items()} | {
            "predicted": predicted,
            "real": predicted + int(mask.sum()),
            "cells": source.size + target.size,
        }

    def sides(self, direction: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target tokens of an example, without tag and end token."""
        example, flipped = self.ranges[direction][0] + number, self.flipped[direction]
        return self.split.side(example, flipped), self.split.side(example, not flipped)


def training_stream(
    maker: GroupMaker, batch_size: int, config: ParallelDataConfig, seed: int
) -> BatchStream:
    """Return a stream of batches. A batch has `batch_size` groups."""
    shares = temperature_shares(maker.sizes, config.temperature)
    size = min(config.block, sum(maker.sizes))

    def order(direction: int, epoch: int) -> np.ndarray:
        random = np.random.default_rng([seed, direction, epoch])
        return random.permutation(maker.sizes[direction])

    def groups(number: int) -> list[np.ndarray]:
        rows, lengths = [], []  # a row is (direction, index)
        for direction, (share, count) in enumerate(zip(shares, maker.sizes, strict=True)):
            start, stop = (int(share * size * block) for block in (number, number + 1))
            chosen = EpochPlan(partial(order, direction), count, 1).rows(start, stop)
            rows.append(np.stack([np.full_like(chosen, direction), chosen], axis=1))
            lengths.append(maker.lengths(direction, chosen))
        random = np.random.default_rng([seed, number])
        examples = np.concatenate(rows)
        found = length_groups(np.concatenate(lengths), config.max_tokens, random)
        return [examples[found[place]] for place in random.permutation(len(found))]

    def name(example: np.ndarray) -> str:
        source, target = maker.directions[example[0]]
        return f"sentence {example[1]} of {source}-{target}"

    return group_stream(groups, batch_size, lambda rows: maker.make(*rows.T), name)
