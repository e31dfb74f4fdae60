"""How often each kind of thing was met while reading: nothing is left out in silence."""

from __future__ import annotations

from collections import Counter

# Kinds that readers of every field meet.
MALFORMED = "malformed records left out"
INVALID_UTF8 = "lines with invalid UTF-8 replaced"
# JSON can spell half of a character (\ud83d), which UTF-8 and tokenizers can't.
HALF_CHARACTERS = "records with halves of a character replaced"
LONG_LINES = "over-long lines left out"
EMPTY = "empty texts left out"


class Counts(Counter[str]):
    """Numbers by kind, where a kind is the words that describe it. A kind not met has 0.

    They add up by `update`, and are plain JSON.
    """

    def met(self, kind: str, where: str, why: str) -> None:
        """Count something that is wrong.

        Args:
            kind: What it counts as.
            where: File and line, for a person.
            why: What is wrong with it.
        """
        self[kind] += 1

    def describe(self, *units: str) -> str:
        """Say how many of the units there are, and in brackets all else, most frequent first."""
        what = ", ".join(f"{self[unit]:,} {unit}" for unit in units)
        others = [(-count, kind) for kind, count in self.items() if count and kind not in units]
        odd = ", ".join(f"{-count:,} {kind.replace('_', ' ')}" for count, kind in sorted(others))
        return f"{what} ({odd})" if odd else what


class NothingWrong(Counts):
    """Counts of a set to score on: to leave out a record would change the score."""

    def met(self, kind: str, where: str, why: str) -> None:
        """Raise ValueError with the place and what is wrong there."""
        raise ValueError(f"{where}: {why}")
