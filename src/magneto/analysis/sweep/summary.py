"""What a grid says of each placement: its best rate, the largest it stands, its sensitivity."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

from magneto.analysis.sweep.judged import DIVERGED, FINISHED, MISSING, STUCK, Scored
from magneto.functional.statistics import half_width
from magneto.theory.placement import find_placement


@dataclass(frozen=True)
class Summary:
    """What the grid says of one placement.

    Attributes:
        placement: Name of the row.
        title: Its title.
        best_learning_rate: Rate of the best mean score among those at which every seed learned.
        score: Mean score there.
        interval: Half-width of its 95 % confidence interval over seeds; None for one seed, and
            where all seeds have one score, which shows no spread to tell by.
        scores: Each seed's score there.
        finished: Cells that finished and learned.
        stuck: Cells that finished and did not learn.
        diverged: Cells that diverged.
        missing: Cells that have no result yet.
        largest_stable_rate: Largest rate at which, as at all smaller ones, every seed learned.
        next_rate: The next rate that was tried; None if there is none.
        failed_there: How many of its seeds failed there, of how many that have a result.
        best_beyond_stable: Whether the best rate lies above the largest stable one.
        sensitivity: Mean over rates of the final loss's excess over the best, each capped at the
            loss at initialisation, which is what a diverged run counts as (arXiv 2309.14322); None
            for a placement that learned at no rate.
    """

    placement: str
    title: str
    best_learning_rate: float | None
    score: float | None
    interval: float | None
    scores: Sequence[float]
    finished: int
    stuck: int
    diverged: int
    missing: int
    largest_stable_rate: float | None
    next_rate: float | None
    failed_there: Sequence[int]
    best_beyond_stable: bool
    sensitivity: float | None


def summarise(cells: Sequence[Scored], placement: str, higher_is_better: bool) -> Summary:
    """Summarise the cells of one placement.

    A run that has no result yet is none that learned: its rate is neither best nor stable.
    """
    mine = [cell for cell in cells if cell.placement == placement]
    ended = [cell for cell in mine if cell.status != MISSING]
    rates = sorted({cell.learning_rate for cell in mine})
    whole = {rate: scores for rate in rates if (scores := whole_scores(mine, rate))}
    stable = list(takewhile(lambda rate: is_stable(mine, rate), rates))
    sign = -1 if higher_is_better else 1
    best = min(whole, key=lambda rate: sign * fmean(whole[rate]), default=None)
    scores = whole.get(best, []) if best is not None else []
    width = half_width(scores)
    largest = stable[-1] if stable else None
    following = rates[len(stable)] if len(stable) < len(rates) else None
    there = [cell for cell in ended if cell.learning_rate == following]
    status = [cell.status for cell in mine]
    return Summary(
        placement=placement,
        title=title_of(placement),
        best_learning_rate=best,
        score=fmean(scores) if scores else None,
        interval=width if math.isfinite(width) and width > 0 else None,
        scores=scores,
        finished=status.count(FINISHED),
        stuck=status.count(STUCK),
        diverged=status.count(DIVERGED),
        missing=status.count(MISSING),
        largest_stable_rate=largest,
        next_rate=following,
        failed_there=(sum(cell.status != FINISHED for cell in there), len(there)),
        best_beyond_stable=best is not None and (largest is None or best > largest),
        sensitivity=sensitivity(ended, everywhere(mine)) if status.count(FINISHED) else None,
    )


def title_of(row: str) -> str:
    """Return a row with its placement's title; what is no placement is its own."""
    placement, comma, others = row.partition(",")
    try:
        return f"{find_placement(placement).title}{comma}{' ' if comma else ''}{others}"
    except ValueError:
        return row


def whole_scores(cells: Sequence[Scored], rate: float) -> list[float]:
    """Return the scores at a rate if every seed learned there, else nothing."""
    there = [cell for cell in cells if cell.learning_rate == rate]
    scores = [c.score for c in there if c.status == FINISHED and c.score is not None]
    return scores if len(scores) == len(there) else []


def is_stable(cells: Sequence[Scored], rate: float) -> bool:
    """Return whether every seed at a rate finished and learned."""
    return all(cell.status == FINISHED for cell in cells if cell.learning_rate == rate)


def everywhere(cells: Sequence[Scored]) -> list[int]:
    """Return the seeds that are to run at every rate; others are near the best rate alone."""
    planned = Counter(cell.seed for cell in cells)
    return sorted(seed for seed, count in planned.items() if count == max(planned.values()))


def sensitivity(cells: Sequence[Scored], seeds: Sequence[int]) -> float | None:
    """Return the learning-rate sensitivity of one placement's cells, a mean over its seeds.

    Args:
        cells: That have a result.
        seeds: Those that count: one that was run at a part of the rates says nothing of the others.
    """
    found = []
    for seed in seeds:
        mine = [c for c in cells if c.seed == seed]
        capped = [
            c.initial_loss if c.loss is None else min(c.loss, c.initial_loss)
            for c in mine
            if c.initial_loss is not None
        ]
        if capped:
            found.append(fmean(capped) - min(capped))
    return fmean(found) if found else None
