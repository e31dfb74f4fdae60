"""How often each kind of thing was met while reading: nothing is left out in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

# Of a kind that are named.
FEW = 3
# Kinds that readers of every field meet.
MALFORMED = "malformed records left out"
INVALID_UTF8 = "lines with invalid UTF-8 replaced"
# JSON can spell half of a character (\ud83d), which UTF-8 and tokenizers can't.
HALF_CHARACTERS = "records with halves of a character replaced"
LONG_LINES = "over-long lines left out"
NO_FILES = "pipes, devices, broken links and unreadable folders left out"
EMPTY = "empty texts left out"


class Counts(Counter[str]):
    """Numbers by kind, where a kind is the words that describe it. A kind not met has 0.

    They add up by `update`. As JSON they are numbers alone; `plain` keeps the names too.

    Attributes:
        named: The first few of a kind, where they are and what is wrong with them.
    """

    def __init__(self, counts: Mapping[str, int] | Iterable[str] = ()) -> None:
        self.named: dict[str, list[str]] = {}
        super().__init__(counts)

    def update(self, counts: Any = (), /, **more: int) -> None:
        """Add other counts, or one for each kind in a series of them."""
        super().update(counts, **more)
        for kind, names in getattr(counts, "named", {}).items():
            self._name(kind, *names)

    def _name(self, kind: str, *names: str) -> None:
        known = self.named.get(kind, [])
        if len(known) < FEW:
            self.named[kind] = [*known, *names][:FEW]

    def plain(self) -> dict[str, Any]:
        """Return numbers and names as plain values, of which `of_plain` makes them again."""
        return {"counts": dict(self), "named": self.named}

    @classmethod
    def of_plain(cls, values: Mapping[str, Any]) -> Counts:
        """Return the counts that `plain` gave."""
        found = cls(values["counts"])
        found.named = {kind: list(names) for kind, names in values["named"].items()}
        return found

    def met(self, kind: str, where: str, why: str) -> None:
        """Count something that is wrong.

        Args:
            kind: What it counts as.
            where: File and line, for a person.
            why: What is wrong with it.
        """
        self[kind] += 1
        self._name(kind, f"{where}: {why}")

    def describe(self, *units: str) -> str:
        """Say how many of the units there are, and in brackets all else, most frequent first."""
        what = ", ".join(f"{self[unit]:,} {unit}" for unit in units)
        others = [(-count, kind) for kind, count in self.items() if count and kind not in units]
        odd = ", ".join(f"{-count:,} {kind.replace('_', ' ')}{self._names(kind)}"
                        for count, kind in sorted(others))  # fmt: skip
        return f"{what} ({odd})" if odd else what

    def _names(self, kind: str) -> str:
        names = self.named.get(kind, ())
        return f" [{'; '.join(names)}]" if names else ""

    def beside(self, amounts: Mapping[str, int]) -> str:
        """Say how many of each unit there are, and in brackets what was counted."""
        both = Counts(self)
        for unit, amount in amounts.items():
            both[unit] = amount
        return both.describe(*amounts)


class NothingWrong(Counts):
    """Counts of a set to score on: to leave out a record would change the score."""

    def met(self, kind: str, where: str, why: str) -> None:
        """Raise ValueError with the place and what is wrong there."""
        raise ValueError(f"{where}: {why}")
