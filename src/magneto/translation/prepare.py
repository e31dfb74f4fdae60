"""Parallel text, filtered and tokenised once, kept as memory-mapped numbers; and batches of it.

The numbers of a model are those of a joint tokenizer, then a tag for each language.

A cache holds the vocabulary, index.json and, per split, tokens.bin (first side, second side, next
pair, ...) and offsets.bin (where each side begins). Its name is a fingerprint of all it is made of.

A batch is a list of groups of sentences of like length, of about the same number of tokens each.
Directions are sampled by temperature, block by block: a block takes from every direction its share,
going on where the block before stopped, so that no sentence of a direction is seen twice before
all of it was seen once. A block is sorted by length, cut into groups, and the groups are shuffled.
All is a function of (seed, block), so that a run resumes exactly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from magneto.config import nearest
from magneto.data.cache import (
    also_known,
    cache_directory,
    content_digest,
    fingerprint,
    is_kept,
    made_whole,
    map_numbers,
)
from magneto.data.problems import EMPTY, Counts
from magneto.data.stream import BatchStream, cut_groups, group_stream
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
    sought_languages,
)
from magneto.translation.text import Pair, SplitText, parallel_fingerprint

SPLITS = ("train", "validation")
# Beside a saved tokenizer: the languages that have tags.
TAGS_FILE = "tags.txt"
# Pairs of sentences tokenised at a time.
BATCH = 1024
# Tokenizers that are trained on the text itself.
TRAINED = ("bpe", "sentencepiece")
# Characters a tokenizer is trained on, shared evenly among the pairs of languages.
TOKENIZER_CHARACTERS = 50_000_000
# Sides of sentences whose tokens are counted at a time; an even number.
SIDES = 1 << 20

Group = dict[str, Any]
"""source, source_mask (batch, source length); target, targets (batch, target length): tensors.
predicted: targets that count; cells: places of both sides; real: those that are not padding."""


class TranslationVocabulary:
    """A tokenizer shared by all languages, and a tag that says which language to translate into.

    Tags are numbered after the tokenizer's tokens, in the order of `languages`, so that any
    tokenizer will do and no text can contain one.

    Attributes:
        tokenizer: Joint tokenizer.
        languages: Codes of the languages.
        size: Tokens and tags.
        end: Ends a sentence, and is what the decoder reads first.
    """

    def __init__(self, tokenizer: Tokenizer, languages: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.languages = tuple(languages)
        self.size = tokenizer.vocab_size + len(self.languages)
        self.end = tokenizer.end

    def tag(self, language: str) -> int:
        """Return the number of a language's tag.

        Raises:
            ValueError: If the language is not known; names the nearest.
        """
        if language not in self.languages:
            hint, there = nearest(language, self.languages), ", ".join(self.languages)
            raise ValueError(f"no language {language!r}{hint} (there is {there})")
        return self.tokenizer.vocab_size + self.languages.index(language)

    def encode_source(self, texts: list[str], language: str) -> list[list[int]]:
        """Return what the encoder reads to translate texts into `language`: tag, tokens, end."""
        tag = self.tag(language)
        return [[tag, *tokens, self.end] for tokens in self.tokenizer.encode(texts)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of what a decoder wrote, up to its end; tags are left out."""
        kept: list[int] = []
        for token in tokens:
            if token == self.end:
                break
            if token < self.tokenizer.vocab_size:
                kept.append(int(token))
        return self.tokenizer.decode(kept)

    def save(self, directory: Path) -> None:
        """Write the tokenizer and the list of languages into an existing directory."""
        self.tokenizer.save(directory)
        (directory / TAGS_FILE).write_text("\n".join(self.languages) + "\n", encoding="utf-8")


def load_vocabulary(directory: Path) -> TranslationVocabulary:
    """Load what `TranslationVocabulary.save` wrote; FileNotFoundError if it is not all there."""
    return TranslationVocabulary(load_tokenizer(directory), read_tags(directory))


def read_tags(directory: Path) -> list[str]:
    """Return the languages that a directory's tags are of.

    Raises:
        FileNotFoundError: If it has no list of them.
    """
    path = directory / TAGS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {TAGS_FILE} in {directory}: it is no translation vocabulary")
    return path.read_text(encoding="utf-8").split()


@dataclass(frozen=True)
class ParallelSplit:
    """One split: pairs of languages one after another, each a range of examples.

    Attributes:
        tokens: All sides end to end, without tags and ends.
        offsets: (2 x examples + 1,) where each side begins.
        ranges: First and last-but-one example of each pair of languages.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    ranges: dict[Pair, tuple[int, int]]

    def side(self, example: int, side: int) -> np.ndarray:
        """Return the tokens of one side of an example."""
        place = 2 * example + side
        return self.tokens[self.offsets[place] : self.offsets[place + 1]]


@dataclass(frozen=True)
class PreparedParallel:
    """A prepared corpus.

    Attributes:
        vocabulary: Tokenizer and tags.
        directions: From which language to which.
        train: Training split.
        validation: Validation split.
        counts: What was met in the text of each pair of languages, by split.
        digest: Of all tokens, by which a run knows its data again; taken once, when they were made.
    """

    vocabulary: TranslationVocabulary
    directions: list[Pair]
    train: ParallelSplit
    validation: ParallelSplit
    counts: dict[str, dict[Pair, Counts]]
    digest: str

    def describe(self, source: str) -> Iterator[str]:
        """Say in lines what there is and what was left out; nothing of a split that has no text."""
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
    """Filter and tokenise a source, or find it done.

    Raises:
        FileNotFoundError: If there is no such source or tokenizer.
        ValueError: If it has no text for a direction, or none to validate on.
    """
    held = _place(config)
    if not is_kept(held, progress):
        with made_whole(held) as aside:
            Preparation(config, progress).fill(aside)
    if config.tokenizer in TRAINED:
        # A run keeps the vocabulary that came out, and finds the same tokens by it.
        also_known(held, _place(replace(config, tokenizer=str(held))))
    return _open(held)


def _place(config: ParallelDataConfig) -> Path:
    sources = [config.source, config.validation_source or config.source]
    name = fingerprint(
        [
            parallel_fingerprint(name, config.languages, sought_languages(config))
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
    path = load_tokenizer(config.tokenizer).path  # a wrong one is an error before any work
    content = "bytes" if path is None else hashlib.blake2b(path.read_bytes()).hexdigest()
    return (content, known_tags(config))


def known_tags(config: ParallelDataConfig) -> list[str] | None:
    """Return the languages whose tags are fixed by a tokenizer that was used before, if any."""
    path = user_path(config.tokenizer)
    folder = path if path.is_dir() else path.parent
    there = config.tokenizer not in TRAINED and (folder / TAGS_FILE).is_file()
    return read_tags(folder) if there else None


class Preparation:
    """Fills a cache.

    Args:
        config: What to prepare.
        progress: Shows it.
    """

    def __init__(self, config: ParallelDataConfig, progress: Progress) -> None:
        self.config, self.progress = config, progress
        self.text = SplitText(config)

    def fill(self, directory: Path) -> None:
        """Write vocabulary, both splits, index."""
        tokenizer, text = self._tokenizer(directory), self.text
        languages = known_tags(self.config) or sorted({name for p in text.pairs for name in p})
        vocabulary = TranslationVocabulary(tokenizer, languages)
        for _, target in text.directions:
            vocabulary.tag(target)  # a language that an older vocabulary lacks is an error
        vocabulary.save(directory)
        kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
        index: dict[str, Any] = {"dtype": np.dtype(kind).name, "directions": text.directions}
        seen: dict[Pair, set[int]] = {}
        for split in ("validation", "train"):
            index[split] = self._write(split, directory, tokenizer, kind, seen)
        files = (directory / f"{split}.tokens.bin" for split in SPLITS)
        index["digest"] = content_digest(*(map_numbers(path, kind) for path in files))
        (directory / "index.json").write_text(json.dumps(index), encoding="utf-8")

    def _write(
        self, split: str, directory: Path, tokenizer: Tokenizer, kind: Any, seen: dict
    ) -> list[dict[str, Any]]:
        """Write a split's tokens and offsets; return a record per pair of languages."""
        found: list[dict[str, Any]] = []
        with (
            (directory / f"{split}.tokens.bin").open("wb") as tokens,
            (directory / f"{split}.offsets.bin").open("wb") as offsets,
        ):
            np.zeros(1, np.int64).tofile(offsets)
            place = example = 0
            for pair in self.text.pairs:
                counts, start = Counts(), example
                # A training pair's digests are many: they go when it is written.
                held = seen.pop(pair, set())
                for sides in self._batches(pair, split, tokenizer, counts, held):
                    np.fromiter(chain.from_iterable(sides), kind).tofile(tokens)
                    ends = place + np.cumsum([len(side) for side in sides], dtype=np.int64)
                    ends.tofile(offsets)
                    place, example = int(ends[-1]), example + len(sides) // 2
                    self.progress.update(f"tokenising {split} pairs", example, None)
                if split == "validation":
                    seen[pair] = held
                found.append({"pair": pair, "range": (start, example),
                              "counts": counts.plain()})  # fmt: skip
        if example == 0 and (split == "validation" or self.text.trains):
            raise ValueError(f"{self.config.source} has no {split} text that passes the filters")
        return found

    def _batches(
        self, pair: Pair, split: str, tokenizer: Tokenizer, counts: Counts, seen: set[int]
    ) -> Iterator[list[list[int]]]:
        """Yield the tokens of what is not too long, many pairs at a time: first, second, first."""
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
            model = train_sentencepiece(texts, "unigram", size, self.config.tokenizer_lines)
            (directory / "tokenizer.model").write_bytes(model)
        else:
            train_bpe(texts, size, directory / "tokenizer.json")
        return load_tokenizer(directory)

    def _tokenizer_texts(self) -> Iterator[str]:
        number = 0
        for pair in self.text.pairs:
            left = TOKENIZER_CHARACTERS // len(self.text.pairs)
            for texts in self.text.unfiltered(pair, "train", Counts()):
                left -= sum(map(len, texts))
                if left < 0:
                    break
                number += 1
                self.progress.update("training a tokenizer on pairs", number, None)
                yield from texts


def _open(directory: Path) -> PreparedParallel:
    index = read_json(directory / "index.json")
    splits = {}
    for split in SPLITS:
        tokens = map_numbers(directory / f"{split}.tokens.bin", index["dtype"])
        offsets = map_numbers(directory / f"{split}.offsets.bin", np.int64)
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
    """Return each direction's share of what is sampled: size ** (1 / temperature), normalised."""
    weights = np.asarray(sizes, np.float64) ** (1 / temperature)
    return weights / weights.sum()


def endless(count: int, start: int, stop: int, seed: Sequence[int]) -> np.ndarray:
    """Return places start to stop of an endless row of permutations of `count` numbers."""
    parts = [np.zeros(0, np.int64)]
    while start < stop:
        epoch, offset = divmod(start, count)
        order = np.random.default_rng([*seed, epoch]).permutation(count)
        parts.append(order[offset : offset + stop - start])
        start += len(parts[-1])
    return np.concatenate(parts)


def length_groups(
    lengths: np.ndarray, budget: int, random: np.random.Generator
) -> list[np.ndarray]:
    """Sort examples by length and cut them into groups.

    Args:
        lengths: (examples, 2) of source and target.
        budget: Largest count x longest side of a group.
        random: Orders examples of equal lengths.

    Returns:
        Numbers of the examples of each group, short ones first.
    """
    shuffled = random.permutation(len(lengths))
    source, target = lengths[shuffled].T
    # Sources rise and fall in turn, so that they don't jump where the target length changes.
    order = shuffled[np.lexsort((np.where(target % 2, source, -source), target))]
    return cut_groups(order, lengths.max(1, keepdims=True), [budget])


class GroupMaker:
    """Makes groups from a split's examples.

    Args:
        split: Prepared text.
        vocabulary: Its tags and end.
        directions: From which language to which.
    """

    def __init__(
        self,
        split: ParallelSplit,
        vocabulary: TranslationVocabulary,
        directions: Sequence[Pair],
    ) -> None:
        self.split, self.end = split, vocabulary.end
        pairs = [(min(direction), max(direction)) for direction in directions]
        ranges = [split.ranges.get(pair, (0, 0)) for pair in pairs]
        there = [n for n, (start, stop) in enumerate(ranges) if stop > start]
        self.directions = [directions[n] for n in there]
        self.ranges = [ranges[n] for n in there]
        self.sizes = [stop - start for start, stop in self.ranges]
        self.tags = [vocabulary.tag(target) for _, target in self.directions]
        self.flipped = [source > target for source, target in self.directions]

    def lengths(self, direction: int, numbers: np.ndarray) -> np.ndarray:
        """Return (examples, 2) tokens of source and target, with tag and end."""
        start, stop = self.ranges[direction]
        offsets = self.split.offsets[2 * start : 2 * stop + 1]
        found = np.diff(offsets).reshape(-1, 2)[numbers]
        return (found[:, ::-1] if self.flipped[direction] else found) + np.array([2, 1])

    def target_counts(self, size: int) -> np.ndarray:
        """Return how often each of `size` tokens is a target, ends included, (size,)."""
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
        """Return a padded group of examples (direction, number within it)."""
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
        """Return the tokens of the source and the target of an example, without tag and end."""
        example, flipped = self.ranges[direction][0] + number, self.flipped[direction]
        return self.split.side(example, flipped), self.split.side(example, not flipped)


def training_stream(
    maker: GroupMaker, batch_size: int, config: ParallelDataConfig, seed: int
) -> BatchStream:
    """Return batches of groups; a piece of a batch is a list of groups.

    Args:
        maker: Of groups.
        batch_size: Groups of a global batch.
        config: Of their size, of the sampling over directions, of blocks.
        seed: Of the order.
    """
    shares = temperature_shares(maker.sizes, config.temperature)
    size = min(config.block, sum(maker.sizes))

    def groups(number: int) -> list[np.ndarray]:
        """Choose the examples of a block, rows (direction, number), and cut them into groups."""
        rows, lengths = [], []
        for direction, (share, count) in enumerate(zip(shares, maker.sizes, strict=True)):
            start, stop = (int(share * size * block) for block in (number, number + 1))
            chosen = endless(count, start, stop, (seed, direction))
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
