"""What became of each run of a grid: it learned, did not learn, diverged, or has no result yet.

A run that sits at the task's trivial baseline (token frequencies, the commonest class, ...) on the
same validation data did not learn, however finite its loss is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magneto.lab.sweep.cells import RATE, SEED, Cell
from magneto.lab.sweep.sweep import read_result

MARGIN = 0.02
"""Share of the way from the baseline to the best possible score by which a run must beat it."""

FINISHED, STUCK, DIVERGED, MISSING = "finished", "did not learn", "diverged", "missing"


@dataclass(frozen=True)
class Scored:
    """One cell of a comparison.

    Attributes:
        placement: Name of the row.
        learning_rate: Peak rate.
        seed: Of the run.
        status: "finished" (and learned), "did not learn", "diverged" (also: ended above the loss it
            began with) or "missing".
        score: The task's primary metric at the end; None if it diverged or is missing.
        loss: Validation loss at the end; likewise.
        initial_loss: Training loss of the first step, that is, at initialisation.
        diverged_at: Step, or None.
        reason: Why it is not "finished".
        seconds: Wall time.
        steps: Steps taken.
        curve: [step, loss] rows: of validation where the score is a loss and there are several,
            else of training.
        curve_of: "training" or "validation".
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
    curve_of: str = "training"


@dataclass(frozen=True)
class Judge:
    """What a run's score is held against.

    Attributes:
        metric: The task's primary metric.
        higher_is_better: Its direction.
        baseline: The trivial baseline's value of it; None if the task states none.
    """

    metric: str
    higher_is_better: bool
    baseline: float | None = None

    @property
    def threshold(self) -> float | None:
        """The score that a run must beat; None without a baseline.

        The best possible score is taken for 0 where lower is better, and otherwise for 1, or 100
        where the baseline is above 1.
        """
        if self.baseline is None:
            return None
        best = (100.0 if self.baseline > 1 else 1.0) if self.higher_is_better else 0.0
        return self.baseline + MARGIN * (best - self.baseline)

    def beats_baseline(self, score: float) -> bool:
        """Return whether a score is better than the baseline by the margin."""
        if self.threshold is None:
            return True
        return score > self.threshold if self.higher_is_better else score < self.threshold


def score_cell(folder: Path, cell: Cell, judge: Judge) -> Scored:
    """Read one cell's outcome and say what became of it."""
    where = (cell.row, float(cell.values[RATE]), int(cell.values[SEED]))
    found = read_result(folder, cell)
    if found is None:
        return Scored(*where, MISSING)
    metrics, curve = found["metrics"], found["curve"]
    first = found.get("initial_loss", curve[0][1] if curve else None)
    status, reason = verdict(found, judge, first)
    ended = status in (FINISHED, STUCK)
    validation = found.get("validation_curve", [])
    shown = judge.metric == "loss" and len(validation) > 1
    return Scored(
        *where,
        status,
        score=metrics[judge.metric] if ended else None,
        loss=metrics.get("loss") if ended else None,
        initial_loss=first,
        diverged_at=found["diverged_at"],
        reason=reason,
        seconds=found["seconds"],
        steps=found["step"],
        curve=validation if shown else curve,
        curve_of="validation" if shown else "training",
    )


def verdict(found: Mapping[str, Any], judge: Judge, first: float | None) -> tuple[str, str]:
    """Return a run's status and, unless it finished and learned, why.

    Where the validation loss is the score, it alone counts: a collapsed stack may keep a low
    training loss by its dropout. A classifier that fits its training data too well has not
    diverged: of its two losses the lower one counts.
    """
    if found["status"] != FINISHED:
        return found["status"], found["reason"]
    metrics, curve = found["metrics"], found["curve"]
    score = metrics.get(judge.metric)
    if score is None or not math.isfinite(score):
        return DIVERGED, f"{judge.metric} is not finite at the end"
    losses = [metrics.get("loss")]
    if judge.metric != "loss" and curve:
        losses.append(curve[-1][1])
    end = min((loss for loss in losses if loss is not None), default=None)
    if end is not None and first is not None and not end < first:
        return DIVERGED, "it ended above the loss it began with"
    if not judge.beats_baseline(score):
        return STUCK, (
            f"{judge.metric} {score:.4g} does not beat the trivial baseline, "
            f"{judge.baseline:.4g}, by {MARGIN:.0%} of the way to the best possible"
        )
    return FINISHED, ""
