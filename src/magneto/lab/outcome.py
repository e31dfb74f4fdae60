"""Outcomes of the runs in a comparison, and a summary of each placement.

A run has learned, has not learned, has diverged, or has no result yet. A run has not learned if its
validation score does not beat the task's trivial baseline, such as token frequencies or the most
frequent class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from magneto.functional.statistics import half_width
from magneto.lab.grid import RATE, SEED, Cell, read_result
from magneto.theory.placement import find_placement
from magneto.training.evaluation import FAR_ABOVE_FIRST
from magneto.training.logging import TrainingResult, read_metrics
from magneto.training.task import Task

MARGIN = 0.02
"""Margin by which a run must beat the baseline, as a share of the distance from the baseline to the
best possible score."""

FINISHED, STUCK, DIVERGED, MISSING = "finished", "did not learn", "diverged", "missing"


@dataclass(frozen=True)
class Scored:
    """Result of one run of a comparison."""

    placement: str  # name of the row
    learning_rate: float
    seed: int
    status: str  # FINISHED (and learned), STUCK, DIVERGED or MISSING
    score: float | None = None  # primary metric at the end; None if diverged or missing
    loss: float | None = None  # validation loss at the end; None as for the score
    initial_loss: float | None = None  # training loss of the first step, at initialisation
    diverged_at: int | None = None
    reason: str = ""  # why it is not FINISHED
    seconds: float = 0.0
    steps: int = 0
    # Rows of [step, loss]: the validation loss if this is the score and was evaluated more than
    # once, else the training loss.
    curve: Sequence[Sequence[float]] = ()
    curve_of: str = "training"


@dataclass(frozen=True)
class Judge:
    """Decides whether a run learned.

    A run learned if its score beats the task's trivial baseline by `MARGIN`. If the task has no
    baseline, every score counts as learning. A ladder compares losses, so its runs must also beat
    the baseline's loss: a classifier that always predicts one class may beat an accuracy.
    """

    metric: str
    higher_is_better: bool
    baseline: float | None = None
    baseline_loss: float | None = None  # None if the loss does not count

    @classmethod
    def of(cls, task: Task, limit: int | None) -> Judge:
        """Return the `Judge` of a task, with a baseline measured on `limit` batches (None: all)."""
        return replace(cls.of_ladder(task, limit), baseline_loss=None)

    @classmethod
    def of_ladder(cls, task: Task, limit: int | None) -> Judge:
        """Return the `Judge` of a ladder, which also judges the loss."""
        baseline = task.baseline(limit)
        metric = task.primary_metric
        return cls(metric, task.higher_is_better, baseline.get(metric), baseline.get("loss"))

    @property
    def threshold(self) -> float | None:
        """Score that a run must beat; None without a baseline.

        The best possible score is taken as 0 if lower scores are better. If higher scores are
        better, the best possible score is taken as 1, or as 100 if the baseline is above 1.
        """
        if self.baseline is None:
            return None
        best = (100.0 if self.baseline > 1 else 1.0) if self.higher_is_better else 0.0
        return self.baseline + MARGIN * (best - self.baseline)

    def beats_baseline(self, score: float) -> bool:
        if self.threshold is None:
            return True
        return score > self.threshold if self.higher_is_better else score < self.threshold

    def shortfall(self, metrics: Mapping[str, Any]) -> str:
        """Say which baseline the metrics of a run do not beat; "" if the run learned."""
        score, loss, limit = metrics[self.metric], metrics.get("loss"), self.baseline_loss
        if not self.beats_baseline(score):
            return (
                f"{self.metric} {score:.4g} is not better than {self.threshold:.4g} ({MARGIN:.0%} "
                f"of the way from the trivial baseline's {self.baseline:.4g} to the best possible "
                "score)"
            )
        if limit is not None and loss is not None and not loss < limit - MARGIN * abs(limit):
            return f"loss {loss:.4g} is not {MARGIN:.0%} below the trivial baseline's {limit:.4g}"
        return ""


def score_cell(folder: Path, cell: Cell, judge: Judge) -> Scored:
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
    """Return a run's status, and the reason if the run did not finish or did not learn.

    `found` is the content of outcome.json, and `first` is the run's initial loss. A run has
    diverged if the final loss is more than `FAR_ABOVE_FIRST` times the initial loss. A run has not
    learned if the final loss is not below the initial loss.

    If the metric is the loss, the validation loss counts as the final loss. With dropout, a rank
    collapse shows in the validation loss, but not in the training loss. For other metrics, the
    final loss is the lower of training loss and validation loss. So an overfitted classifier has
    learned, although its validation loss is high.
    """
    if found["status"] != FINISHED:
        return found["status"], found["reason"]
    metrics, curve = found["metrics"], found["curve"]
    score = metrics.get(judge.metric)
    for name, value in ((judge.metric, score), ("loss", metrics.get("loss", 0.0))):
        if value is None or not math.isfinite(value):
            return DIVERGED, f"the final {name} is not finite"
    losses = [metrics.get("loss")]
    if judge.metric != "loss" and curve:
        losses.append(curve[-1][1])
    end = min((loss for loss in losses if loss is not None), default=None)
    if end is not None and first is not None and not end < first:
        if not end <= FAR_ABOVE_FIRST * abs(first):
            return DIVERGED, f"the loss rose too far, from {first:.4g} to {end:.4g}"
        return STUCK, f"the loss rose from {first:.4g} to {end:.4g}"
    missed = judge.shortfall(metrics)
    return (STUCK, missed) if missed else (FINISHED, "")


def outcome(result: TrainingResult, run: Path) -> dict[str, Any]:
    rows = read_metrics(run)
    training, validation = (
        [[row["step"], row[key]] for row in rows if key in row]
        for key in ("loss", "validation_loss")
    )
    return {**asdict(result), "curve": training, "validation_curve": validation}


@dataclass(frozen=True)
class Group:
    """Results of all seeds of one placement at one learning rate."""

    scores: tuple[float, ...]  # metric of every seed that finished and learned
    stuck: int  # number of seeds that finished without learning
    diverged: int
    missing: int

    @classmethod
    def of(cls, cells: Iterable[Scored]) -> Group:
        own = list(cells)
        status = [cell.status for cell in own]
        learned = (cell.score for cell in own if cell.status == FINISHED)
        return cls(
            tuple(score for score in learned if score is not None),
            *(status.count(kind) for kind in (STUCK, DIVERGED, MISSING)),
        )

    @property
    def mean(self) -> float | None:
        return fmean(self.scores) if self.scores else None

    @property
    def interval(self) -> float | None:
        """Half-width of the mean's 95 % interval; None for equal scores or a single score."""
        return finite(half_width(self.scores) or None)

    @property
    def failed(self) -> int:
        return self.stuck + self.diverged

    @property
    def seeds(self) -> int:
        return len(self.scores) + self.failed

    @property
    def all_learned(self) -> bool:
        return bool(self.scores) and not self.failed + self.missing


def group_cells(comparison: Mapping[str, Any]) -> dict[tuple[str, float], Group]:
    cells = [Scored(**cell) for cell in comparison["cells"]]
    rates = [float(rate) for rate in comparison["learning_rates"]]
    rows = {name: [c for c in cells if c.placement == name] for name in comparison["placements"]}
    return {(name, rate): group for name, row in rows.items()
            for rate, group in by_rate(row, rates).items()}  # fmt: skip


def failures(group: Group) -> str:
    """Describe a group's failed runs, such as "1 of 3 did not learn"; "" if no run failed."""
    kinds = [(group.diverged, DIVERGED), (group.stuck, STUCK)]
    counts = [(count, kind) for count, kind in kinds if count]
    if len(counts) == 1 and group.failed == group.seeds:
        return counts[0][1]
    return ", ".join(f"{count} of {group.seeds} {kind}" for count, kind in counts)


def part(group: Group) -> str:
    """Return " [2/3]" if only 2 of 3 seeds have a result; "" if all seeds have one."""
    return f" [{group.seeds}/{group.seeds + group.missing}]" if group.missing else ""


def finite(value: Any) -> float | None:
    """Return a number as float. None, infinities and nan become None."""
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def decimals_for(values: Iterable[float | None]) -> int:
    """Return the number of decimals (0 to 6) that shows these values with about four digits."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 3
    return min(max(3 - math.floor(math.log10(median(sizes))), 0), 6)


def rate_text(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:g}"


def plus_minus(mean: float | None, interval: float | None, decimals: int) -> str:
    """Format a mean as "4.123 ± 0.012", or as "4.123" without an interval."""
    if finite(mean) is None:
        return "–"
    if finite(interval) is None:
        return f"{mean:.{decimals}f}"
    return f"{mean:.{decimals}f} ± {interval:.{decimals}f}"


def group_text(group: Group, decimals: int) -> str:
    """Format a group's mean, failed runs and missing seeds.

    In "4.123 ± 0.012 (1 of 3 diverged) [3/4]", 3 of 4 seeds have a result, and 1 of these 3 runs
    diverged.
    """
    lost = failures(group)
    if group.mean is None and lost:
        return f"{lost}{part(group)}"
    text = plus_minus(group.mean, group.interval, decimals)
    return f"{text}{f' ({lost})' if lost else ''}{part(group)}"


@dataclass(frozen=True)
class Summary:
    """Summary of one row of a comparison: runs that differ only in learning rate and seed."""

    placement: str
    title: str
    # Rate with the best mean score among those at which every seed learned.
    best_learning_rate: float | None
    score: float | None  # mean at that rate
    interval: float | None  # half-width at 95 % over seeds; None without two different scores
    scores: Sequence[float]  # of each seed at that rate
    finished: int  # number of cells that finished and learned
    stuck: int  # number of cells that finished without learning
    diverged: int
    missing: int
    # Seeds that the grid contains at every rate of every row. Only these count for the largest
    # stable rate and the sensitivity, so that all rows are judged by equally many runs.
    stable_seeds: Sequence[int]
    # Largest rate such that each of these seeds learned at it and at all smaller rates.
    largest_stable_rate: float | None
    next_rate: float | None  # next tested rate
    failed_there: Sequence[int]  # number of these seeds that failed at it, and number with a result
    others_failed: Sequence[int]  # the same for other seeds at rates up to the largest stable one
    best_beyond_stable: bool  # whether the best rate is above the largest stable one
    sensitivity: float | None  # see `sensitivity`; None for a placement that did not learn

    @property
    def ended(self) -> int:
        return self.finished + self.stuck + self.diverged


def summarise(cells: Sequence[Scored], placement: str, higher_is_better: bool) -> Summary:
    """Summarise the results of one row; `placement` is the row's name.

    `cells` must contain the results of all rows. The largest stable rate and the sensitivity use
    only the seeds that the grid contains at every learning rate of every row. A rate with a missing
    run is neither best nor stable.
    """
    mine = [cell for cell in cells if cell.placement == placement]
    seeds = everywhere(cells)
    shared = [cell for cell in mine if cell.seed in seeds]
    rates = sorted({cell.learning_rate for cell in mine})
    at, shared_at = by_rate(mine, rates), by_rate(shared, rates)
    sign = -1 if higher_is_better else 1
    learned = [rate for rate in rates if at[rate].all_learned]
    best = min(learned, key=lambda rate: sign * (at[rate].mean or 0.0), default=None)
    chosen, every = Group.of(()) if best is None else at[best], Group.of(mine)
    stable = list(takewhile(lambda rate: shared_at[rate].all_learned, rates))
    largest = stable[-1] if stable else None
    following = rates[len(stable)] if seeds and len(stable) < len(rates) else None
    at_next = Group.of(()) if following is None else shared_at[following]
    others = Group.of(c for c in mine if c.seed not in seeds and c.learning_rate in stable)
    return Summary(
        placement=placement,
        title=title_of(placement),
        best_learning_rate=best,
        score=chosen.mean,
        interval=chosen.interval,
        scores=chosen.scores,
        finished=len(every.scores),
        stuck=every.stuck,
        diverged=every.diverged,
        missing=every.missing,
        stable_seeds=seeds,
        largest_stable_rate=largest,
        next_rate=following,
        failed_there=(at_next.failed, at_next.seeds),
        others_failed=(others.failed, others.seeds),
        best_beyond_stable=best is not None and (largest is None or best > largest),
        sensitivity=sensitivity(mine, seeds) if every.scores else None,
    )


def by_rate(cells: Sequence[Scored], rates: Sequence[float]) -> dict[float, Group]:
    return {rate: Group.of(c for c in cells if c.learning_rate == rate) for rate in rates}


def title_of(row: str) -> str:
    """Return a row's title, as "Sub-LN, layers=6" for the row "sub,layers=6"."""
    placement, comma, others = row.partition(",")
    try:
        return f"{find_placement(placement).title}{comma}{' ' if comma else ''}{others}"
    except ValueError:
        return row


def everywhere(cells: Sequence[Scored]) -> list[int]:
    """Return the seeds that the grid contains at every learning rate of every row."""
    planned = {(cell.placement, cell.learning_rate, cell.seed) for cell in cells}
    places = {(placement, rate) for placement, rate, _ in planned}
    seeds = {seed for _, _, seed in planned}
    return sorted(seed for seed in seeds if all((*place, seed) in planned for place in places))


def sensitivity(cells: Sequence[Scored], seeds: Sequence[int]) -> float | None:
    """Return the learning-rate sensitivity (arXiv 2309.14322) as a mean over seeds.

    The sensitivity of one seed is the mean final loss over the rates, minus the smallest final
    loss. Losses are capped at the initial loss. A diverged run counts with its initial loss.
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
