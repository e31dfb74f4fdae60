"""What a grid says of each placement: its best rate, the largest it stands, its sensitivity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

from magneto.functional.statistics import half_width
from magneto.lab.sweep.judged import DIVERGED, FINISHED, MISSING, STUCK, Scored
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
        stable_seeds: Seeds that are to run at every rate of every row: the largest stable rate and
            the sensitivity are of these alone, so that a row is not judged by more runs than
            another.
        largest_stable_rate: Largest rate at which, as at all smaller ones, each of them learned.
        next_rate: The next rate that was tried; None if there is none.
        failed_there: How many of them failed there, of how many that have a result.
        others_failed: How many of the other seeds' runs up to the largest stable rate failed, of
            how many that have a result.
        best_beyond_stable: Whether the best rate lies above the largest stable one.
        sensitivity: Over the same seeds, the mean over rates of the final loss's excess over the
            best, each capped at the loss at initialisation, which is what a diverged run counts as
            (arXiv 2309.14322); None for a placement that learned at no rate.
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
    stable_seeds: Sequence[int]
    largest_stable_rate: float | None
    next_rate: float | None
    failed_there: Sequence[int]
    others_failed: Sequence[int]
    best_beyond_stable: bool
    sensitivity: float | None


def summarise(cells: Sequence[Scored], placement: str, higher_is_better: bool) -> Summary:
    """Summarise the cells of one placement.

    A run that has no result yet is none that learned: its rate is neither best nor stable.

    Args:
        cells: Of the whole grid: other rows decide which seeds ran everywhere.
        placement: Name of the row.
        higher_is_better: Direction of the score.
    """
    mine = [cell for cell in cells if cell.placement == placement]
    rates = sorted({cell.learning_rate for cell in mine})
    whole = {rate: scores for rate in rates if (scores := whole_scores(mine, rate))}
    sign = -1 if higher_is_better else 1
    best = min(whole, key=lambda rate: sign * fmean(whole[rate]), default=None)
    scores = whole.get(best, []) if best is not None else []
    width = half_width(scores)
    seeds = everywhere(cells)
    shared = [cell for cell in mine if cell.seed in seeds]
    others = [cell for cell in mine if cell.seed not in seeds]
    stable = list(takewhile(lambda rate: is_stable(shared, rate), rates))
    largest = stable[-1] if stable else None
    following = rates[len(stable)] if seeds and len(stable) < len(rates) else None
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
        stable_seeds=seeds,
        largest_stable_rate=largest,
        next_rate=following,
        failed_there=failed([cell for cell in shared if cell.learning_rate == following]),
        others_failed=failed([cell for cell in others if cell.learning_rate in stable]),
        best_beyond_stable=best is not None and (largest is None or best > largest),
        sensitivity=sensitivity(mine, seeds) if status.count(FINISHED) else None,
    )


def failed(cells: Sequence[Scored]) -> tuple[int, int]:
    """Return how many runs failed, of how many that have a result."""
    ended = [cell.status for cell in cells if cell.status != MISSING]
    return len(ended) - ended.count(FINISHED), len(ended)


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
    """Return whether there are runs at a rate, and each of them finished and learned."""
    there = [cell.status for cell in cells if cell.learning_rate == rate]
    return bool(there) and all(status == FINISHED for status in there)


def everywhere(cells: Sequence[Scored]) -> list[int]:
    """Return the seeds that are to run at every rate of every row; others are near a best rate."""
    planned = {(cell.placement, cell.learning_rate, cell.seed) for cell in cells}
    places = {(placement, rate) for placement, rate, _ in planned}
    seeds = {seed for _, _, seed in planned}
    return sorted(seed for seed in seeds if all((*place, seed) in planned for place in places))


def sensitivity(cells: Sequence[Scored], seeds: Sequence[int]) -> float | None:
    """Return the learning-rate sensitivity of one placement's cells, a mean over its seeds.

    Args:
        cells: Of the placement; those that have no result yet are left out.
        seeds: Those that count: one that was run at a part of the rates says nothing of the others.
    """
    found = []
    for seed in seeds:
        capped = [
            cell.initial_loss if cell.loss is None else min(cell.loss, cell.initial_loss)
            for cell in cells
            if cell.seed == seed and cell.status != MISSING and cell.initial_loss is not None
        ]
        if capped:
            found.append(fmean(capped) - min(capped))
    return fmean(found) if found else None
