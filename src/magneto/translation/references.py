"""Whole sentences and their translations, as they were written: what a model is scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from magneto.config import ConfigError
from magneto.data.counts import HALF_CHARACTERS, INVALID_UTF8, LONG_LINES, MALFORMED, Counts
from magneto.translation.config import (
    ParallelDataConfig,
    Texts,
    sought_languages,
    split_direction,
)
from magneto.translation.filter import Pair
from magneto.translation.sources import open_parallel
from magneto.translation.splits import SplitText

# Which part of a test set is read: the first of these that it has.
SPLITS = ("test", "validation", "train")


@dataclass(frozen=True)
class ReferenceTexts:
    """Sentences with references.

    Attributes:
        split: The part of the source they are of.
        texts: By direction: the sentence to translate, and its translation.
        unknown: Languages of the source that the model does not know, left out.
        counts: What was met.
    """

    split: str
    texts: dict[Pair, list[Texts]]
    unknown: list[str]
    counts: Counts

    def describe(self) -> str:
        """Say how many sentences are scored, and what of them is odd."""
        total = sum(len(pairs) for pairs in self.texts.values())
        kinds = (INVALID_UTF8, HALF_CHARACTERS, LONG_LINES, MALFORMED)
        odd = [f"{self.counts[kind]:,} {kind}" for kind in kinds if self.counts[kind]]
        if self.unknown:
            odd.append(f"unknown to the model, left out: {', '.join(self.unknown)}")
        return "; ".join([f"{total:,} sentences", *odd])


def read_validation_texts(config: ParallelDataConfig, limit: int | None) -> ReferenceTexts:
    """Read what a recipe validates on, without its filters by length.

    Args:
        config: The recipe's.
        limit: Sentences per direction at most.
    """
    made = SplitText(config)
    if config.validation_limit is not None:
        limit = min(limit or config.validation_limit, config.validation_limit)
    counts = Counts()
    texts = {}
    for source, target in made.directions:
        pair = (min(source, target), max(source, target))
        read = islice(made.texts(pair, "validation", counts, set()), limit)
        texts[source, target] = [turned(each, source > target) for each in read]
    return ReferenceTexts("validation", {d: t for d, t in texts.items() if t}, [], counts)


def read_test_texts(
    source: str,
    config: ParallelDataConfig,
    known: Sequence[str],
    directions: Sequence[str] | None,
    limit: int | None,
) -> ReferenceTexts:
    """Read a test set: all of it, in its order, unfiltered.

    Args:
        source: As in `ParallelDataConfig`. Of several parts, its test part is read.
        config: The recipe's, for the language in the middle and the directions.
        known: Languages that the model knows.
        directions: Such as en-de, instead of the recipe's.
        limit: Sentences per direction at most.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If it has nothing for a direction that was asked for, or none at all.
    """
    text = open_parallel(source, None, sought_languages(config))
    split = next((split for split in SPLITS if text.pairs(split)), SPLITS[0])
    there = text.pairs(split)
    both = {d for pair in there for d in (pair, pair[::-1]) if set(d) <= set(known)}
    has = f"it has {describe(there)}; the model knows {', '.join(known)}"
    if directions or config.directions:
        wanted = [
            (d[0], d[-1]) for d in map(split_direction, directions or config.directions or ())
        ]
        missing = [f"{a}-{b}" for a, b in wanted if (a, b) not in both]
        if missing and directions:
            raise ValueError(f"{source} has no {split} text for {', '.join(missing)}: {has}")
    else:
        wanted = [d for d in both if config.pivot_language in d]
        wanted.sort(key=lambda d: (d[0] != config.pivot_language, d))
    counts = Counts()
    texts = {}
    for direction in wanted:
        if direction in both:
            read = islice(text.read(min(direction), max(direction), split, counts), limit)
            texts[direction] = [turned(each, direction[0] > direction[1]) for each in read]
    if not texts:
        raise ValueError(f"{source} has no {split} text for this model: {has}")
    unknown = sorted({name for pair in there for name in pair} - set(known))
    return ReferenceTexts(split, texts, unknown, counts)


def turned(texts: Texts, other_way: bool) -> Texts:
    """Return a pair, or the pair with its sides exchanged."""
    return (texts[1], texts[0]) if other_way else texts


def describe(pairs: set[Pair]) -> str:
    """List pairs of languages, or only how many there are."""
    if len(pairs) > 12:
        return f"{len(pairs)} pairs of {', '.join(sorted({n for p in pairs for n in p}))}"
    return ", ".join(sorted("-".join(pair) for pair in pairs)) or "nothing"


def chosen(texts: ReferenceTexts, directions: list[str] | None) -> ReferenceTexts:
    """Keep the directions that were asked for.

    Raises:
        ConfigError: If one of them is not there; names the nearest.
    """
    if directions is None:
        return texts
    wanted = [(found[0], found[-1]) for found in map(split_direction, directions)]
    missing = [
        name for name, pair in zip(directions, wanted, strict=True) if pair not in texts.texts
    ]
    if missing:
        there = ["-".join(pair) for pair in texts.texts]
        near = ", ".join(get_close_matches(missing[0], there, n=3, cutoff=0.0))
        lines = f"--directions {', '.join(missing)}: not among the {len(there)}; nearest: {near}"
        raise ConfigError([lines])
    kept = {pair: texts.texts[pair] for pair in wanted}
    return ReferenceTexts(texts.split, kept, texts.unknown, texts.counts)
