"""Numbers of a comparison, recomputed from the files of its runs alone.

This imports nothing of the package; it has its own rules and statistics.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

from scipy.stats import t

MARGIN = 0.02
FAR_ABOVE = 1.5
PLACEMENT = "model.placement"
OWN = (PLACEMENT, "training.learning_rate", "seed")


def read_runs(folder: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each run of the grid, judged from its own files."""
    sweep = json.loads((folder / "sweep.json").read_text())
    grid = sweep["grid"]
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    cells += [cell for cell in sweep.get("further", []) if cell not in cells]
    for cell in cells:
        named = {key.rpartition(".")[2]: value for key, value in cell.items() if key in OWN}
        run = folder / "cells" / words_of(cell)
        yield named | {"placement": row_of(cell)} | judged(run, about)


def row_of(cell: dict[str, Any]) -> str:
    """Return the row of the report that a run belongs to."""
    others = {key: value for key, value in cell.items() if key not in OWN}
    parts = [str(cell[PLACEMENT])] if PLACEMENT in cell else []
    return ",".join(parts + ([words_of(others)] if others else [])) or "the recipe"


def words_of(cell: dict[str, Any]) -> str:
    """Return fields and values as in the name of a run's directory."""
    parts = [f"{key.rpartition('.')[2]}={value}" for key, value in cell.items()]
    return ",".join(parts).replace("/", "_")


def judged(run: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return a run's status, score, loss and initial loss."""
    if not (run / "outcome.json").exists():
        return {"status": "missing"}
    outcome = json.loads((run / "outcome.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training = [row["loss"] for row in rows if "loss" in row]
    first = outcome.get("initial_loss", training[0] if training else None)
    metric = about["metric"]
    score, loss = (outcome["metrics"].get(name) for name in (metric, "loss"))
    logged = [row[f"validation_{metric}"] for row in rows if f"validation_{metric}" in row]
    if outcome["status"] == "finished" and logged and logged[-1] != score:
        raise SystemExit(f"{run}: outcome.json has {metric} {score}, metrics.jsonl {logged[-1]}")
    ends = [loss] if metric == "loss" else [loss, *training[-1:]]
    end = min((value for value in ends if value is not None), default=None)
    status = outcome["status"]
    if status == "finished":
        lost = score is None or not math.isfinite(score)
        falls = end is None or first is None or end < first
        lost = lost or (not falls and not end <= FAR_ABOVE * abs(first))
        learns = falls and not lost and learned(score, about["baseline"], about["higher_is_better"])
        # Only a ladder judges the loss too.
        learns = learns and learned(loss, about.get("baseline_loss"), False)
        status = "diverged" if lost else "finished" if learns else "did not learn"
    if status == "diverged":
        score = loss = None
    return {"status": status, "score": score, "loss": loss, "first": first}


def learned(score: float, baseline: float | None, higher: bool) -> bool:
    """Return whether a score beats the trivial baseline by the margin."""
    if baseline is None:
        return True
    if higher:
        return score > baseline + MARGIN * ((100 if baseline > 1 else 1) - baseline)
    return score < (1 - MARGIN) * baseline


class Check:
    """Count of numbers that agree, and list of those that do not."""

    def __init__(self) -> None:
        self.count = 0
        self.wrong: list[str] = []

    def same(self, where: str, reported: object, found: object) -> None:
        self.record(reported == found, where, reported, found)

    def record(self, agree: bool, where: str, reported: object, found: object) -> None:
        """Count a comparison of what is said with what was found."""
        self.count += 1
        if not agree:
            self.wrong.append(f"{where}: the page has {reported!r}, the runs {found!r}")

    def print(self) -> int:
        """Print the differences and the counts; return the exit code."""
        print(*self.wrong, f"{self.count} checked, {len(self.wrong)} differ", sep="\n")
        return int(bool(self.wrong))


def width_of(values: Sequence[float]) -> float | None:
    """Return the half-width of a mean's 95 % interval; None without two values that differ."""
    if len(set(values)) < 2:
        return None
    return t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def error_of(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """Return the standard error and the degrees of freedom of a difference of means, by Welch.

    None for single values, and for different means of constant values.
    """
    if min(len(first), len(second)) < 2:
        return None
    a, b = variance(first) / len(first), variance(second) / len(second)
    if a + b == 0:
        return (0.0, 1.0) if fmean(first) == fmean(second) else None
    return math.sqrt(a + b), (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))


def gaps_of(
    rows: dict[str, Sequence[float]],
) -> dict[frozenset[str], tuple[float, float | None]]:
    """Return the difference of each two rows and its half-width by Holm's method."""
    pairs = [(frozenset(pair), rows[pair[0]], rows[pair[1]])
             for pair in itertools.combinations(rows, 2)]  # fmt: skip
    gaps = {names: abs(fmean(first) - fmean(second)) for names, first, second in pairs}
    errors = {names: error_of(first, second) for names, first, second in pairs}
    chances = {
        names: 2 * t.sf(gaps[names] / error[0], error[1]) if error[0] else 1.0
        for names, error in errors.items() if error
    }  # fmt: skip
    found: dict[frozenset[str], tuple[float, float | None]] = {n: (gaps[n], None) for n in gaps}
    left = len(chances)
    for names in sorted(chances, key=lambda names: chances[names]):
        error, freedom = errors[names] or (0.0, 1.0)
        found[names] = gaps[names], t.ppf(1 - 0.025 / left, freedom) * error
        left -= chances[names] <= 0.05 / left
    return found


def shared_seeds(runs: Sequence[dict[str, Any]]) -> set[int]:
    """Return the seeds that the grid contains at every rate of every row."""
    planned = {(run["placement"], float(run["learning_rate"]), run["seed"]) for run in runs}
    places = {planned_run[:2] for planned_run in planned}
    seeds = {seed for *_, seed in planned}
    return {seed for seed in seeds if all((*place, seed) in planned for place in places)}


def sum_up(runs: Sequence[dict[str, Any]], higher: bool, shared: set[int]) -> dict[str, Any]:
    """Return the summary of one placement's runs.

    A rate with a missing run does not count as stable, since that run may fail.
    """
    rates = sorted({float(run["learning_rate"]) for run in runs})
    at = {rate: [r for r in runs if float(r["learning_rate"]) == rate] for rate in rates}
    scores = {rate: [r["score"] for r in found] for rate, found in at.items()
              if all(r["status"] == "finished" for r in found)}  # fmt: skip
    choose = max if higher else min
    best = choose(scores, key=lambda rate: fmean(scores[rate])) if scores else None
    own = {rate: [r for r in found if r["seed"] in shared] for rate, found in at.items()}
    stuck_at = next((r for r in rates if any(run["status"] != "finished" for run in own[r])), None)
    stable = [rate for rate in rates if stuck_at is None or rate < stuck_at]
    others = [r for rate in stable for r in at[rate] if r["seed"] not in shared]
    others = [r for r in others if r["status"] != "missing"]
    runs = [run for run in runs if run["status"] != "missing"]
    counts = {s: sum(r["status"] == s for r in runs) for s in ("diverged", "did not learn")}
    next_runs = [r for r in own.get(stuck_at, []) if r["status"] != "missing"]
    excess = []
    for seed in shared:
        ends = [
            r["first"] if r["loss"] is None else min(r["loss"], r["first"])
            for r in runs
            if r["seed"] == seed and r["first"] is not None
        ]
        excess += [fmean(ends) - min(ends)] if ends else []
    return {
        "best": best, "scores": scores.get(best, []), "stable": stable[-1] if stable else None,
        "seeds": len(shared), "next": stuck_at, "total": len(runs), **counts,
        "failed": sum(r["status"] != "finished" for r in next_runs), "next_total": len(next_runs),
        "others": (sum(r["status"] != "finished" for r in others), len(others)),
        "sensitivity": fmean(excess) if excess and sum(counts.values()) < len(runs) else None,
    }  # fmt: skip
