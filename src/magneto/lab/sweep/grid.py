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
from magneto.lab.sweep.judged import DIVERGED, FINISHED, MISSING, STUCK

COLUMNS = (
    *("recipe", "metric", "placement", "learning_rate", "seed", "status", "score", "loss"),
    *("initial_loss", "diverged_at", "reason", "steps", "seconds"),
)
CURVE_COLUMNS = ("placement", "learning_rate", "seed", "status", "curve_of", "step", "loss")


@dataclass(frozen=True)
class Group:
    """The seeds of one placement at one learning rate.

    Attributes:
        scores: The metric of every seed that finished and learned.
        finished: How many seeds finished and learned.
        stuck: How many finished and did not learn.
        diverged: How many diverged.
        missing: How many have no result yet.
    """

    scores: tuple[float, ...]
    finished: int
    stuck: int
    diverged: int
    missing: int

    @property
    def mean(self) -> float | None:
        """Mean score of the seeds that learned."""
        return fmean(self.scores) if self.scores else None

    @property
    def interval(self) -> float | None:
        """Half-width of its 95 % confidence interval; None without two scores that differ."""
        return finite(half_width(self.scores) or None)

    @property
    def failed(self) -> int:
        """How many seeds diverged or did not learn."""
        return self.stuck + self.diverged

    @property
    def seeds(self) -> int:
        """How many seeds have a result."""
        return self.finished + self.failed


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
    status = [cell["status"] for cell in cells]
    scores = [finite(cell["score"]) for cell in cells if cell["status"] == FINISHED]
    return Group(
        tuple(score for score in scores if score is not None),
        *(status.count(kind) for kind in (FINISHED, STUCK, DIVERGED, MISSING)),
    )


def failures(group: Group) -> str:
    """Say how many seeds failed, and how: "diverged", "1 of 3 did not learn"; "" if none did."""
    kinds = [(group.diverged, DIVERGED), (group.stuck, STUCK)]
    there = [(count, kind) for count, kind in kinds if count]
    if len(there) == 1 and group.failed == group.seeds:
        return there[0][1]
    return ", ".join(f"{count} of {group.seeds} {kind}" for count, kind in there)


def part(group: Group) -> str:
    """Say how many seeds a number is of, where some have no result yet: " [2/3]"."""
    return f" [{group.seeds}/{group.seeds + group.missing}]" if group.missing else ""


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
    """Write a learning rate as everywhere: in the answer, in a terminal, on an axis."""
    return "–" if rate is None else f"{rate:g}"


def plus_minus(mean: float | None, interval: float | None, decimals: int) -> str:
    """Write a mean with its interval, if it has one: "4.123 ± 0.012"."""
    if finite(mean) is None:
        return "–"
    if finite(interval) is None:
        return f"{mean:.{decimals}f}"
    return f"{mean:.{decimals}f} ± {interval:.{decimals}f}"


def write_csv(comparison: Mapping[str, Any]) -> str:
    """Return every cell of the grid as a row of CSV."""
    shared = {name: comparison[name] for name in ("recipe", "metric")}
    return _csv(COLUMNS, (shared | dict(cell) for cell in comparison["cells"]))


def write_curves(comparison: Mapping[str, Any]) -> str:
    """Return every point of every loss curve as a row of CSV."""
    return _csv(
        CURVE_COLUMNS,
        (
            dict(cell) | {"step": step, "loss": loss}
            for cell in comparison["cells"]
            for step, loss in cell["curve"]
        ),
    )


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
