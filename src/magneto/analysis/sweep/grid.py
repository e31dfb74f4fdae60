"""The numbers of a report: cells of one placement and rate together, and how they are written."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from magneto.functional.statistics import half_width

COLUMNS = (
    *("recipe", "metric", "placement", "learning_rate", "seed", "status", "score", "loss"),
    *("initial_loss", "diverged_at", "reason", "steps", "seconds"),
)


@dataclass(frozen=True)
class Group:
    """The seeds of one placement at one learning rate.

    Attributes:
        scores: The metric of every seed that finished.
        finished: How many seeds finished.
        diverged: How many diverged.
        missing: How many have no result yet.
    """

    scores: tuple[float, ...]
    finished: int
    diverged: int
    missing: int

    @property
    def mean(self) -> float | None:
        """Mean score of the seeds that finished."""
        return fmean(self.scores) if self.scores else None

    @property
    def interval(self) -> float | None:
        """Half-width of its 95 % confidence interval; None for fewer than two seeds."""
        return finite(half_width(self.scores)) if self.scores else None

    @property
    def seeds(self) -> int:
        """How many seeds have a result."""
        return self.finished + self.diverged


def group_cells(comparison: Mapping[str, Any]) -> dict[tuple[str, float], Group]:
    """Return the cells of every placement and learning rate together."""
    found: dict[tuple[str, float], list[Mapping[str, Any]]] = {
        (name, float(rate)): []
        for name in comparison["placements"]
        for rate in comparison["learning_rates"]
    }
    for cell in comparison.get("cells") or ():
        found.setdefault((cell["placement"], float(cell["learning_rate"])), []).append(cell)
    return {where: _group(cells) for where, cells in found.items()}


def _group(cells: Sequence[Mapping[str, Any]]) -> Group:
    status = [cell.get("status") for cell in cells]
    scores = [finite(c.get("score")) for c in cells if c.get("status") == "finished"]
    return Group(
        tuple(score for score in scores if score is not None),
        status.count("finished"),
        status.count("diverged"),
        len(status) - status.count("finished") - status.count("diverged"),
    )


def finite(value: Any) -> float | None:
    """Return a number as float; None for None, infinities and not-a-number."""
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def decimals_for(values: Iterable[float | None]) -> int:
    """Return how many decimals give numbers of this size about four figures."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 3
    return min(max(3 - math.floor(math.log10(median(sizes))), 0), 6)


def rate_text(rate: float | None) -> str:
    """Write a learning rate as people do: 3e-4, 0.03, 1."""
    if rate is None:
        return "–"
    if 0.01 <= rate < 1000 or rate == 0:
        return f"{rate:g}"
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def plus_minus(mean: float | None, interval: float | None, decimals: int) -> str:
    """Write a mean with its interval, if it has one: "4.123 ± 0.012"."""
    if finite(mean) is None:
        return "–"
    if finite(interval) is None:
        return f"{mean:.{decimals}f}"
    return f"{mean:.{decimals}f} ± {interval:.{decimals}f}"


def write_csv(comparison: Mapping[str, Any]) -> str:
    """Return every cell of the grid as a row of CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    shared = {name: comparison.get(name) for name in ("recipe", "metric")}
    for cell in comparison.get("cells") or ():
        writer.writerow(shared | dict(cell))
    return out.getvalue()
