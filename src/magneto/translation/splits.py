"""The pairs of sentences that a recipe trains, validates and is scored on: divided and filtered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from itertools import islice

from magneto.config import ConfigError, nearest
from magneto.data.problems import (
    EMPTY,
    HALF_CHARACTERS,
    INVALID_UTF8,
    LONG_LINES,
    MALFORMED,
    Counts,
)
from magneto.data.sources import VALIDATED, hash_of, held_below
from magneto.translation.config import (
    DUPLICATE,
    HELD_OUT,
    READ,
    UNLIKE,
    ParallelDataConfig,
    Texts,
    sought_languages,
    split_direction,
)
from magneto.translation.text import Pair, ParallelText, open_parallel

# Sides that differ by fewer characters or bytes are never of unlike length.
SLACK = 20
# Which part of a test set is read: the first of these that it has.
TESTED = ("test", "validation", "train")


class SplitText:
    """What a recipe trains and validates on, pair of languages by pair.

    Args:
        config: The recipe's.

    Attributes:
        trains: Whether anything is trained on: not where both sources are one.
        directions: From which language to which.
        pairs: Their pairs of languages, each sorted.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If it has no text for a direction or a language.
    """

    def __init__(self, config: ParallelDataConfig) -> None:
        self.config = config
        sought = sought_languages(config)
        self.text = open_parallel(config.source, config.languages, sought)
        # To evaluate a model on other text, both sources are that text: nothing is trained on.
        self.trains = config.source != config.validation_source
        there = {p for split in VALIDATED for p in self.text.pairs(split) if not self.trains}
        there |= self.text.pairs("train")
        self.directions = wanted_directions(config, there, self.text.languages)
        self.pairs = sorted({(min(d), max(d)) for d in self.directions})
        self.other: ParallelText | None = None
        if config.validation_source is not None:
            self.other = open_parallel(config.validation_source, config.languages, sought)
        self._limit = cache(self._held_below)

    def texts(self, pair: Pair, split: str, counts: Counts, seen: set[int]) -> Iterator[Texts]:
        """Yield the pairs of a split that are not empty, of unlike length or seen before."""
        earlier = frozenset(seen)
        for texts in self.unfiltered(pair, split, counts):
            counts[READ] += 1
            if not (texts[0].strip() and texts[1].strip()):
                counts[EMPTY] += 1
                continue
            if unlike(texts, self.config.max_ratio):
                counts[UNLIKE] += 1
                continue
            key = digest(texts)
            if key in seen:
                counts[HELD_OUT if key in earlier else DUPLICATE] += 1
                continue
            seen.add(key)
            yield texts

    def unfiltered(self, pair: Pair, split: str, counts: Counts) -> Iterator[Texts]:
        """Yield the pairs of "train" or "validation", as the sources divide them, or a hash."""
        if split == "train" and not self.trains:
            return
        if self.other is not None and split == "validation":
            own = next((s for s in VALIDATED if pair in self.other.pairs(s)), None)
            if own is not None:
                yield from self.other.read(*pair, own, counts)
        elif self.other is not None or pair in self.text.pairs("validation"):
            yield from self.text.read(*pair, split, counts)
        else:
            side, limit = self._key(pair), self._limit(pair)
            for texts in self.text.read(*pair, "train", counts):
                if (hash_of(texts[side]) < limit) == (split == "validation"):
                    yield texts

    def _key(self, pair: Pair) -> int:
        """Return the side by whose hash sentences are held out."""
        return int(pair[1] == self.config.pivot_language)

    def _held_below(self, pair: Pair) -> float:
        side, read = self._key(pair), self.text.read(*pair, "train", Counts())
        return held_below((texts[side] for texts in read), self.config.validation_fraction)


def wanted_directions(
    config: ParallelDataConfig, there: set[Pair], languages: Sequence[str]
) -> list[Pair]:
    """Return the directions to train: those given, or all with the pivot language.

    Text in two languages alone is translated both ways.

    Args:
        config: What is wanted.
        there: Pairs of those languages that the text has, each sorted.
        languages: All that the text has.

    Raises:
        ValueError: If the text has none of them, or nothing for one of the languages.
    """
    pivot, has = config.pivot_language, f"it has {', '.join(languages)}"
    if config.directions:
        given = list(map(split_direction, config.directions))
        if missing := [f"{a}-{b}" for a, b in given if (min(a, b), max(a, b)) not in there]:
            raise ValueError(f"{config.source} has no text for {', '.join(missing)}: {has}")
        return given
    others = [pair[pair[0] == pivot] for pair in sorted(there) if pivot in pair]
    gone = sorted({*(config.languages or ())} - {pivot, *others})
    if gone and pivot in languages:
        free = sorted({*languages} - {pivot, *others})
        raise ValueError(f"{config.source} has no text in {gone[0]} (data.languages) with {pivot} "
                         f"to train on{nearest(gone[0], free)} ({has})")  # fmt: skip
    if not there:
        raise ValueError(f"{config.source} has no text in two languages to train on: {has}")
    is_usual = config.languages is None and pivot == ParallelDataConfig.pivot_language
    if not others and len(there) == 1 and is_usual:
        ((one, other),) = there
        return [(one, other), (other, one)]
    if not others:
        one, other = min(there)
        raise ValueError(f"{config.source} has no text with {pivot} (data.pivot_language): {has}; "
                         f"give --data.pivot_language {one}, or --data.directions "
                         f"{one}-{other}")  # fmt: skip
    return [(pivot, other) for other in others] + [(other, pivot) for other in others]


def unlike(texts: Texts, ratio: float) -> bool:
    """Return whether one side is too long for the other, both in characters and in bytes.

    Scripts differ in both: Chinese has few characters, Tamil many bytes.
    """
    encoded = [text.encode("utf-8", errors="surrogatepass") for text in texts]
    for one, other in (map(len, texts), map(len, encoded)):
        short, long = sorted((one, other))
        if long <= ratio * short or long - short <= SLACK:
            return False
    return True


def digest(texts: Texts) -> int:
    """Return 64 bits that stand for a pair of sentences."""
    whole = "\0".join(texts).encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(whole, digest_size=8).digest(), "big")


@dataclass(frozen=True)
class ReferenceTexts:
    """Whole sentences with references, as they were written: what a model is scored on.

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
    made, counts = SplitText(config), Counts()
    if config.validation_limit is not None:
        limit = min(limit or config.validation_limit, config.validation_limit)
    texts = {}
    for direction in made.directions:
        read = made.texts((min(direction), max(direction)), "validation", counts, set())
        if found := [turned(each, direction) for each in islice(read, limit)]:
            texts[direction] = found
    return ReferenceTexts("validation", texts, [], counts)


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
    split = next((split for split in TESTED if text.pairs(split)), TESTED[0])
    there = text.pairs(split)
    both = {d for a, b in there for d in ((a, b), (b, a)) if {*d} <= {*known}}
    has = f"it has {listed_pairs(there)}; the model knows {', '.join(known)}"
    if given := directions or config.directions:
        wanted = list(map(split_direction, given))
        missing = [f"{a}-{b}" for a, b in wanted if (a, b) not in both]
        if missing and directions:
            raise ValueError(f"{source} has no {split} text for {', '.join(missing)}: {has}")
    else:
        wanted = [d for d in both if config.pivot_language in d]
        wanted.sort(key=lambda d: (d[0] != config.pivot_language, d))
    counts, texts = Counts(), {}
    for direction in (d for d in wanted if d in both):
        read = text.read(min(direction), max(direction), split, counts)
        texts[direction] = [turned(each, direction) for each in islice(read, limit)]
    if not texts:
        raise ValueError(f"{source} has no {split} text for this model: {has}")
    unknown = sorted({name for pair in there for name in pair} - {*known})
    return ReferenceTexts(split, texts, unknown, counts)


def turned(texts: Texts, direction: Pair) -> Texts:
    """Return the sentences of a sorted pair of languages in the order of a direction."""
    return (texts[1], texts[0]) if direction[0] > direction[1] else texts


def listed_pairs(pairs: set[Pair]) -> str:
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
    wanted = {name: split_direction(name) for name in directions}
    if missing := [name for name, pair in wanted.items() if pair not in texts.texts]:
        there = ["-".join(pair) for pair in texts.texts]
        near = ", ".join(get_close_matches(missing[0], there, n=3, cutoff=0.0))
        line = f"--directions {', '.join(missing)}: not among the {len(there)}; nearest: {near}"
        raise ConfigError([line])
    return replace(texts, texts={pair: texts.texts[pair] for pair in wanted.values()})
