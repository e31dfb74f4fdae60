"""What a comparison should say, recomputed from the files of its runs alone.

This imports nothing of the package: it judges and sums up by itself.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

MARGIN = 0.02
PLACEMENT = "model.placement"
OWN = (PLACEMENT, "training.learning_rate", "seed")


def read_runs(folder: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what became of each run of the grid, judged from its own files."""
    sweep = json.loads((folder / "sweep.json").read_text())
    grid = sweep["grid"]
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    cells += [cell for cell in sweep.get("further", []) if cell not in cells]
    for cell in cells:
        named = {key.rpartition(".")[2]: value for key, value in cell.items() if key in OWN}
        row = row_of(cell)
        baseline = about.get("baselines", {}).get(row, about["baseline"])
        run = folder / "cells" / words_of(cell)
        yield named | {"placement": row} | judged(run, about, baseline)


def row_of(cell: dict[str, Any]) -> str:
    """Return the row of the report that a run belongs to."""
    others = {key: value for key, value in cell.items() if key not in OWN}
    parts = [str(cell[PLACEMENT])] if PLACEMENT in cell else []
    return ",".join(parts + ([words_of(others)] if others else [])) or "the recipe"


def words_of(cell: dict[str, Any]) -> str:
    """Return fields and values as the name of a run's directory has them."""
    parts = [f"{key.rpartition('.')[2]}={value}" for key, value in cell.items()]
    return ",".join(parts).replace("/", "_")


def judged(run: Path, about: dict[str, Any], baseline: float | None) -> dict[str, Any]:
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
        lost = lost or (None not in (end, first) and not end < first)
        learns = not lost and learned(score, baseline, about["higher_is_better"])
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


@cache
def quantile(freedom: float) -> float:
    """Return the 97.5 % point of Student's t, by Simpson's rule on the substituted density."""
    # With t = sqrt(freedom) tan(angle) the density is proportional to cos(angle) ** (freedom - 1).
    count = 4000
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def below(angle: float) -> float:
        step = angle / count
        values = [math.cos(i * step) ** (freedom - 1) for i in range(count + 1)]
        odd, even = sum(values[1:-1:2]), sum(values[2:-1:2])
        return 0.5 + scale * step / 3 * (values[0] + 4 * odd + 2 * even + values[-1])

    low, high = 0.0, math.pi / 2
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.975 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def width_of(values: Sequence[float]) -> float | None:
    """Return the half-width of a mean's 95 % interval; None without two values that differ."""
    if len(set(values)) < 2:
        return None
    return quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def gap_of(first: Sequence[float], second: Sequence[float]) -> tuple[float, float | None]:
    """Return the difference of two means and its half-width by Welch; None if nobody can tell.

    That is so of single values, and of means that differ where no value varies.
    """
    gap = fmean(first) - fmean(second)
    if min(len(first), len(second)) < 2:
        return gap, None
    a, b = variance(first) / len(first), variance(second) / len(second)
    if a + b == 0:
        return gap, 0.0 if gap == 0 else None
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    return gap, quantile(freedom) * math.sqrt(a + b)


def sum_up(runs: Sequence[dict[str, Any]], higher: bool) -> dict[str, Any]:
    """Return what the report should say of one placement's runs.

    A rate of which a run is missing is not fine: it may yet fail.
    """
    rates = sorted({float(run["learning_rate"]) for run in runs})
    at = {rate: [r for r in runs if float(r["learning_rate"]) == rate] for rate in rates}
    fine = {rate: all(r["status"] == "finished" for r in found) for rate, found in at.items()}
    scores = {rate: [r["score"] for r in at[rate]] for rate in rates if fine[rate]}
    choose = max if higher else min
    best = choose(scores, key=lambda rate: fmean(scores[rate])) if scores else None
    stuck_at = next((rate for rate in rates if not fine[rate]), None)
    stable = [rate for rate in rates if stuck_at is None or rate < stuck_at]
    planned = [run["seed"] for run in runs]
    runs = [run for run in runs if run["status"] != "missing"]
    counts = {s: sum(r["status"] == s for r in runs) for s in ("diverged", "did not learn")}
    there = [r for r in at.get(stuck_at, []) if r["status"] != "missing"]
    excess = []
    most = max(map(planned.count, planned))
    for seed in {one for one in planned if planned.count(one) == most}:
        ends = [
            r["first"] if r["loss"] is None else min(r["loss"], r["first"])
            for r in runs
            if r["seed"] == seed and r["first"] is not None
        ]
        excess += [fmean(ends) - min(ends)] if ends else []
    return {
        "best": best, "scores": scores.get(best, []), "stable": stable[-1] if stable else None,
        "next": stuck_at, "total": len(runs), **counts,
        "failed": sum(r["status"] != "finished" for r in there), "there": len(there),
        "sensitivity": fmean(excess) if excess and sum(counts.values()) < len(runs) else None,
    }  # fmt: skip
