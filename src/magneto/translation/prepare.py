"""Parallel text prepared: filtered and tokenised once, kept as memory-mapped numbers.

The numbers of a model are those of a joint tokenizer, then a tag for each language.

A cache holds the vocabulary, index.json and, per split, tokens.bin (first side, second side, next
pair, ...) and offsets.bin (where each side begins). Its name is a fingerprint of all it is made of.
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
from magneto.data.tokenizer import Tokenizer, load_tokenizer, train_bpe, train_sentencepiece
from magneto.files import read_json, user_path
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
            hint = nearest(language, self.languages)
            raise ValueError(f"no language {language!r}{hint} (there is {self.describe()})")
        return self.tokenizer.vocab_size + self.languages.index(language)

    def describe(self) -> str:
        """List the languages."""
        return ", ".join(self.languages)

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
    """Load what `TranslationVocabulary.save` wrote.

    Raises:
        FileNotFoundError: If the directory holds no tokenizer, or no list of languages.
    """
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

    def lengths(self, pair: Pair) -> np.ndarray:
        """Return (examples, 2) tokens of both sides."""
        start, stop = self.ranges[pair]
        return np.diff(self.offsets[2 * start : 2 * stop + 1]).reshape(-1, 2)

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
