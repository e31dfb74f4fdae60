"""The pairs of sentences that a recipe trains and validates on: divided, filtered, counted."""

from __future__ import annotations

from collections.abc import Iterator

from magneto.data.counts import EMPTY, Counts
from magneto.data.splits import held_out
from magneto.translation.config import (
    DUPLICATE,
    HELD_OUT,
    READ,
    UNLIKE,
    ParallelDataConfig,
    ParallelText,
    Texts,
    sought_languages,
)
from magneto.translation.filter import digest, unlike, wanted_directions
from magneto.translation.sources import open_parallel

# In the order in which a source to validate on is looked through.
SPLITS = ("validation", "test", "train")


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
        there = set() if self.trains else self.text.pairs("validation") | self.text.pairs("test")
        there |= self.text.pairs("train")
        self.directions = wanted_directions(config, there, self.text.languages)
        self.pairs = sorted({(min(d), max(d)) for d in self.directions})
        self.other: ParallelText | None = None
        if config.validation_source is not None:
            self.other = open_parallel(config.validation_source, config.languages, sought)

    def texts(
        self, pair: tuple[str, str], split: str, counts: Counts, seen: set[int]
    ) -> Iterator[Texts]:
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

    def unfiltered(self, pair: tuple[str, str], split: str, counts: Counts) -> Iterator[Texts]:
        """Yield the pairs of "train" or "validation", as the sources divide them, or a hash."""
        if split == "train" and not self.trains:
            return
        if self.other is not None and split == "validation":
            # Its validation split if it has one, else whatever it has.
            own = next((s for s in SPLITS if pair in self.other.pairs(s)), None)
            if own is not None:
                yield from self.other.read(*pair, own, counts)
        elif self.other is not None or pair in self.text.pairs("validation"):
            yield from self.text.read(*pair, split, counts)
        else:
            side = pair[1] == self.config.pivot_language
            fraction, wanted = self.config.validation_fraction, split == "validation"
            for texts in self.text.read(*pair, "train", counts):
                if held_out(texts[side], fraction) == wanted:
                    yield texts
