"""What a grid of runs says: which placement, at which learning rate, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.analysis.report.provenance import environments, without_places
from magneto.analysis.sweep.sweep import (
    RATE,
    SEED,
    Cell,
    Sweep,
    cell_directory,
    read_result,
)
from magneto.functional.statistics import half_width
from magneto.theory.placement import find_placement


@dataclass(frozen=True)
class Scored:
    """One cell of a comparison.

    Attributes:
        placement: Name of the row.
        learning_rate: Peak rate.
        seed: Of the run.
        status: "finished", "diverged" (also: ended above the loss it began with) or "missing".
        score: The task's primary metric at the end; None unless finished.
        loss: Validation loss at the end; None unless finished.
        initial_loss: Training loss of the first rows.
        diverged_at: Step, or None.
        reason: Why it did not finish.
        seconds: Wall time.
        steps: Steps taken.
        curve: [step, training loss] rows.
    """

    placement: str
    learning_rate: float
    seed: int
    status: str
    score: float | None = None
    loss: float | None = None
    initial_loss: float | None = None
    diverged_at: int | None = None
    reason: str = ""
    seconds: float = 0.0
    steps: int = 0
    curve: Sequence[Sequence[float]] = ()


@dataclass(frozen=True)
class Summary:
    """What the grid says of one placement.

    Attributes:
        placement: Name of the row.
        title: Its title.
        best_learning_rate: Rate of the best mean score world those at which every seed finished.
        score: Mean score there.
        interval: Half-width of its 95 % confidence interval over seeds; None for one seed.
        finished: Cells that finished.
        diverged: Cells that diverged.
        largest_stable_rate: Largest rate at which, as at all smaller ones, every seed finished.
        sensitivity: Mean over rates of the final loss's excess over the best, each capped at the
            loss at initialisation, which is what a diverged run counts as (arXiv 2309.14322).
    """

    placement: str
    title: str
    best_learning_rate: float | None
    score: float | None
    interval: float | None
    finished: int
    diverged: int
    largest_stable_rate: float | None
    sensitivity: float | None


def score_cell(folder: Path, cell: Cell, metric: str) -> Scored:
    """Read one cell's outcome."""
    where = (cell.row, float(cell.values[RATE]), int(cell.values[SEED]))
    found = read_result(folder, cell)
    if found is None:
        return Scored(*where, "missing")
    curve, metrics = found["curve"], found["metrics"]
    first = curve[0][1] if curve else None
    status, reason = found["status"], found["reason"]
    # Where the validation loss is the score, it alone counts: a collapsed stack may keep a low
    # training loss by its dropout. A classifier that fits its training data too well has not
    # diverged: of its two losses the lower one counts.
    losses = [metrics.get("loss")]
    if metric != "loss":
        losses.append(curve[-1][1] if curve else None)
    end = min((loss for loss in losses if loss is not None), default=None)
    if status == "finished" and not learnt(metrics.get(metric), end, first):
        status, reason = "diverged", "it ended above the loss it began with"
    finished = status == "finished"
    return Scored(
        *where,
        status,
        score=metrics[metric] if finished else None,
        loss=metrics.get("loss") if finished else None,
        initial_loss=first,
        diverged_at=found["diverged_at"],
        reason=reason,
        seconds=found["seconds"],
        steps=found["step"],
        curve=curve,
    )


def learnt(score: float | None, loss: float | None, first: float | None) -> bool:
    """Return whether a run that took all its steps has a finite score, and lost any loss at all."""
    if score is None or not math.isfinite(score):
        return False
    return loss is None or first is None or loss < first


def summarise(cells: Sequence[Scored], placement: str, higher_is_better: bool) -> Summary:
    """Summarise the cells of one placement."""
    mine = [cell for cell in cells if cell.placement == placement and cell.status != "missing"]
    rates = sorted({cell.learning_rate for cell in mine})
    whole = {rate: scores for rate in rates if (scores := whole_scores(mine, rate))}
    stable = list(takewhile(lambda rate: is_stable(mine, rate), rates))
    sign = -1 if higher_is_better else 1
    best = min(whole, key=lambda rate: sign * fmean(whole[rate]), default=None)
    scores = whole.get(best, []) if best is not None else []
    width = half_width(scores)
    return Summary(
        placement=placement,
        title=title_of(placement),
        best_learning_rate=best,
        score=fmean(scores) if scores else None,
        interval=width if math.isfinite(width) else None,
        finished=sum(cell.status == "finished" for cell in mine),
        diverged=sum(cell.status == "diverged" for cell in mine),
        largest_stable_rate=stable[-1] if stable else None,
        sensitivity=sensitivity(mine),
    )


def title_of(row: str) -> str:
    """Return a placement's title; what is no placement is its own."""
    try:
        return find_placement(row).title
    except ValueError:
        return row


def whole_scores(cells: Sequence[Scored], rate: float) -> list[float]:
    """Return the scores at a rate if every seed finished there, else nothing."""
    there = [cell for cell in cells if cell.learning_rate == rate]
    scores = [cell.score for cell in there if cell.score is not None]
    return scores if len(scores) == len(there) else []


def is_stable(cells: Sequence[Scored], rate: float) -> bool:
    """Return whether every seed at a rate finished."""
    return all(cell.status == "finished" for cell in cells if cell.learning_rate == rate)


def sensitivity(cells: Sequence[Scored]) -> float | None:
    """Return the learning-rate sensitivity of one placement's cells, a mean over its seeds."""
    found = []
    for seed in sorted({cell.seed for cell in cells}):
        mine = [c for c in cells if c.seed == seed and c.initial_loss is not None]
        if not mine:
            continue
        first = max(c.initial_loss for c in mine if c.initial_loss is not None)
        capped = [first if c.loss is None else min(c.loss, first) for c in mine]
        found.append(fmean(capped) - min(capped))
    return fmean(found) if found else None


def answer(summaries: Sequence[Summary], higher_is_better: bool, metric: str) -> list[str]:
    """Say in sentences what the grid shows; differences within noise are called that."""
    ranked = [s for s in summaries if s.score is not None]
    if not ranked:
        return ["No placement finished at any of these learning rates."]
    ranked.sort(key=lambda s: s.score or 0.0, reverse=higher_is_better)
    first = ranked[0]
    sentences = [
        f"{first.title} is best here: {metric} {plus_minus(first)} "
        f"at learning rate {first.best_learning_rate:g}."
    ]
    sentences += distances(first, ranked[1:])
    if first.interval is None and len(ranked) > 1:
        sentences.append("One seed each: no difference here can be told from noise.")
    rates = [s.largest_stable_rate for s in summaries if s.largest_stable_rate is not None]
    if rates:
        sentences.append(stability(summaries, max(rates)))
    lost = [
        f"{s.title} in {s.diverged} of {s.diverged + s.finished}" for s in summaries if s.diverged
    ]
    counts = {(s.diverged, s.finished) for s in summaries}
    if lost and len(counts) == 1 and len(lost) > 1:
        lost = [f"{summaries[0].diverged} of {summaries[0].diverged + summaries[0].finished} each"]
    sentences.append(f"Runs diverged: {', '.join(lost)}." if lost else "No run diverged.")
    never = [s.title for s in summaries if s.score is None]
    if never:
        sentences.append(f"At no rate did every seed finish: {', '.join(never)}.")
    return sentences


def stability(summaries: Sequence[Summary], rate: float) -> str:
    """Say which placements are stable up to the largest stable rate of all."""
    bold = [s.title for s in summaries if s.largest_stable_rate == rate]
    who = "the same for all placements" if len(bold) == len(summaries) else ", ".join(bold)
    return f"Largest stable learning rate, {rate:g}: {who}."


def plus_minus(summary: Summary) -> str:
    """Write a score with its interval."""
    interval = "" if summary.interval is None else f" ± {summary.interval:.2g}"
    return f"{summary.score:.4g}{interval}"


def distances(first: Summary, others: Sequence[Summary]) -> list[str]:
    """Say how far the others are from the best: within noise, beyond it, or nobody can tell."""
    groups: dict[str, list[str]] = {"Within noise of it": [], "Beyond noise": [], "Behind it": []}
    for other in others:
        unsure = first.interval is None or other.interval is None
        beyond = "Behind it" if unsure else "Beyond noise"
        where = "Within noise of it" if within_noise(first, other) else beyond
        groups[where].append(f"{other.title} ({behind(first, other)})")
    return [f"{where}: {', '.join(names)}." for where, names in groups.items() if names]


def behind(first: Summary, second: Summary) -> str:
    """Say how far a placement's score is from the best one, and which side is worse."""
    gap = (second.score or 0) - (first.score or 0)
    return f"{abs(gap):.2g} {'higher' if gap > 0 else 'lower'}"


def within_noise(first: Summary, second: Summary) -> bool:
    """Return whether two means differ by less than their intervals together."""
    if None in (first.interval, second.interval, first.score, second.score):
        return False
    noise = math.hypot(first.interval or 0, second.interval or 0)
    return abs((first.score or 0) - (second.score or 0)) <= noise


def collect(folder: Path, sweep: Sweep, command: str) -> dict[str, Any]:
    """Return a comparison as plain values: cells, summaries, the answer, how to repeat it.

    Absolute paths are cut to their last name, so that the result can be shown to others.
    """
    recipe = sweep.load(sweep.cells()[0])
    task = recipe.build_task()
    cells = [score_cell(folder, cell, task.primary_metric) for cell in sweep.cells()]
    placements = list(dict.fromkeys(cell.row for cell in sweep.cells()))
    summaries = [summarise(cells, name, task.higher_is_better) for name in placements]
    runs = [cell_directory(folder, cell) for cell in sweep.cells()]
    return {
        "recipe": without_places(sweep.recipe),
        "task": recipe.task,
        "metric": task.primary_metric,
        "higher_is_better": task.higher_is_better,
        "unit": task.unit,
        "overrides": without_places(sweep.overrides),
        "command": without_places(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environments(runs),
        "config": without_places(recipe.to_mapping()),
        "placements": placements,
        "learning_rates": [float(rate) for rate in sweep.grid[RATE]],
        "seeds": [int(seed) for seed in sweep.grid[SEED]],
        "cells": [asdict(cell) for cell in cells],
        "summary": [asdict(summary) for summary in summaries],
        "answer": answer(summaries, task.higher_is_better, task.primary_metric),
    }
