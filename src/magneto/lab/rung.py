"""Results of a ladder at one trained size (a rung): best rate, largest stable rate and loss.

A size's folder contains sweep.json, rung.json, and the outcome.json and probe.jsonl of each run.
A row contains the runs that differ only in learning rate and seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from magneto.config import ConfigError
from magneto.files import read_object
from magneto.lab.grid import RATE, cell_directory, read_sweep
from magneto.lab.outcome import FINISHED, MISSING, Judge, Scored, score_cell
from magneto.lab.probe import PROBE_FILE
from magneto.lab.trend import find_vertex
from magneto.lab.verdict import HALF_FP16, THRESHOLDS
from magneto.training.logging import read_rows

RUNG_FILE = "rung.json"
# Standard errors of log rates: of a best rate at the end of the tested rates, and of a rate that
# lies between two tested rates a factor of 3 apart.
AT_EDGE, BETWEEN = math.log(3), math.log(3) / math.sqrt(12)
# Assumed standard deviation of a loss's logarithm over seeds, used for single seeds: that of the
# five seeds of docs/reports/placements-24 at their best rates.
ONE_SEED = 0.01
# A loss of 0 has no logarithm.
SMALLEST = 1e-9


@dataclass(frozen=True)
class Quantity:
    """A measured quantity whose trend with size can predict a failure."""

    name: str
    title: str
    limit: float | None  # None if unknown, or if the recipe sets it (the optimizer's epsilon)
    above: bool  # whether failure is expected above the limit
    trouble: str


# The limits of logits and of epsilon are those of Wortsman et al. (arXiv 2309.14322), beyond which
# runs diverged; the others are the probe's.
QUANTITIES = (
    Quantity("attention_logit", "largest attention logit", 1e4, True, "attention logits diverge"),
    Quantity("top_rms", "RMS of activations at the top", HALF_FP16, True,
             "activations leave the range of fp16"),
    Quantity("embedding_gradient", "RMS of the gradient at the embedding", None, False,
             "gradients at the embedding fall below Adam's epsilon"),
    Quantity("update", "relative update of weights", THRESHOLDS["update"].undecided, True,
             "a step changes the weights by 10 %"),
    Quantity("update_to_bound", "update divided by the theory's bound", None, True, ""),
)  # fmt: skip


def read_rung(rung_folder: Path, size: int) -> dict[str, Any]:
    """Return the results at one size as JSON values.

    If a row learned at no rate, its best rate and its loss are missing.

    Raises:
        ConfigError: If a finished run has no validation loss.
    """
    sweep = read_sweep(rung_folder)
    names = [field.name for field in fields(Judge)]
    about = read_object(rung_folder / RUNG_FILE, *names)
    judge = Judge(**{name: about[name] for name in names})
    found = {}
    for row, cells in sweep.rows().items():
        scored = [score_cell(rung_folder, cell, judge) for cell in cells]
        if any(cell.score is not None and cell.loss is None for cell in scored):
            raise ConfigError(["a ladder compares validation losses, but the task's metrics "
                               "contain no 'loss'; add it to the result of summarise, and choose "
                               "another --out"])  # fmt: skip
        shown = sum_up(scored)
        at_best = [c for c in cells if shown and float(c.values[RATE]) == shown["best_tried"]]
        readings = [read_probe(cell_directory(rung_folder, cell)) for cell in at_best]
        measured = {one.name: geometric([r[one.name] for r in readings if one.name in r])
                    for one in QUANTITIES}  # fmt: skip
        measured["update_to_bound"] = geometric(about["updates"].get(row, ()))
        found[row] = {
            "cells": [asdict(cell) | {"curve": []} for cell in scored],
            **(shown or {}),
            "measured": {name: pair for name, pair in measured.items() if pair},
        }
    shared = {name: value for name, value in about.items() if name != "updates"}
    return {"size": size, **shared, "rows": found}


def sum_up(cells: Sequence[Scored]) -> dict[str, Any] | None:
    """Return a row's best rate and largest stable rate; None if there is no best rate.

    At the best rate, every seed learned. A rate above the best rate is stable if all runs from the
    best rate up to this rate learned. If the budget ended early, neighbouring rates may have fewer
    seeds than the best rate. Mean losses then use only the seeds that the best rate and its
    neighbours share.
    """
    done = [cell for cell in cells if cell.status != MISSING]
    losses: dict[float, dict[int, float | None]] = {}
    for cell in done:
        loss = None if cell.loss is None else max(cell.loss, SMALLEST)
        losses.setdefault(cell.learning_rate, {})[cell.seed] = loss
    failed = {cell.learning_rate for cell in done if cell.status != FINISHED}
    good = sorted(losses.keys() - failed)
    order = list(dict.fromkeys(cell.seed for cell in cells))
    shared = shared_seeds(losses, good, order)
    if shared is None:
        return None
    full, best, seeds = shared
    # A parabola does not describe the losses at or beyond a rate without a loss, or a rate where a
    # run failed although the mean loss is lower than at the best rate.
    unfit = losses.keys() - {rate for rate, own in full.items() if fmean(own) >= fmean(full[best])}
    full = {rate: own for rate, own in full.items()
            if not any(min(rate, best) <= r <= max(rate, best) for r in unfit)}  # fmt: skip
    below = max((rate for rate in losses if rate < best), default=None)
    above = min((rate for rate in losses if rate > best), default=None)
    at_edge = below is None or above is None
    best_rate, loss, edge = find_vertex(full, best, AT_EDGE if at_edge else BETWEEN)
    if edge:
        edge = "smallest" if below is None else "largest" if above is None else "stability"
    following = min((rate for rate in failed if rate > best), default=None)
    largest = max(rate for rate in losses if following is None or rate < following)
    middle = math.sqrt(largest * following) if following else None
    return {
        "best_rate": best_rate,
        "loss": loss if seeds > 1 else {**loss, "error": ONE_SEED},
        "edge": edge,
        "best_tried": best,
        "seeds": seeds,
        "seed_losses": full[best],
        "largest_stable": largest,
        "next_failed": following,
        "stable_rate": middle and {"value": middle, "low": largest, "high": following,
                                   "error": BETWEEN},
    }  # fmt: skip


def shared_seeds(
    losses: Mapping[float, Mapping[int, float | None]], good: Sequence[float], order: Sequence[int]
) -> tuple[dict[float, list[float]], float, int] | None:
    """Return the shared seeds' losses at each rate, the best rate, and the number of shared seeds.

    `good` contains the rates at which every run learned. The best rate is the rate in `good` with
    the lowest mean loss. The shared seeds are the first n seeds of `order`, which is the same for
    all rows. n is the largest number for which all n seeds ran at the best rate and at the
    neighbouring rates in `good`. Return None if no rate in `good` has a run of the first seed.
    """
    tried, found = sorted(losses), None
    for seeds in range(len(order), 0, -1):
        by_seed = {rate: [own.get(seed) for seed in order[:seeds]] for rate, own in losses.items()}
        full = {rate: [loss for loss in own if loss is not None] for rate, own in by_seed.items()
                if None not in own}  # fmt: skip
        able = {rate: fmean(full[rate]) for rate in good if rate in full}
        if not able:
            continue
        best = min(able, key=able.__getitem__)
        found = full, best, seeds
        index = tried.index(best)
        near = [rate for rate in tried[max(index - 1, 0) : index + 2] if rate in good]
        if all(rate in full for rate in near):
            break
    return found


def read_probe(run: Path) -> dict[str, float]:
    """Return the largest value of each quantity over a run's steps (smallest for the gradient)."""
    path = run / PROBE_FILE
    if not path.is_file():
        return {}
    rows = read_rows(path)

    def layers(name: str) -> list[float]:
        return [layer[name] for row in rows for layer in row["layers"] if layer[name]]

    found = {
        "attention_logit": max(layers("attention_logit_max"), default=None),
        "top_rms": max((row["layers"][-1]["activation_rms"] or 0 for row in rows), default=None),
        "embedding_gradient": min((row["embedding_gradient_rms"] for row in rows
                                   if row.get("embedding_gradient_rms")), default=None),
        "update": max((fmean(layer["update_ratio"] or 0 for layer in row["layers"])
                       for row in rows), default=None),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value and math.isfinite(value)}


def geometric(values: Sequence[float]) -> dict[str, float] | None:
    """Return the geometric mean of the positive values, and the standard error of its logarithm."""
    logs = [math.log(value) for value in values if value and value > 0]
    if not logs:
        return None
    error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return {"value": math.exp(fmean(logs)), "error": error}


def sensitivity(
    cells: Iterable[Mapping[str, Any]], seed: int, low: float, high: float
) -> float | None:
    """Return the learning-rate sensitivity (arXiv 2309.14322) over the rates from `low` to `high`.

    The sensitivity is the mean loss over log-uniform rates, minus the smallest loss. Between tested
    rates, the loss is interpolated linearly. Losses are capped at the initial loss. A run without a
    final loss counts with its initial loss.
    """
    points = []
    for cell in cells:
        first = cell["initial_loss"]
        if cell["seed"] == seed and cell["status"] != MISSING and first is not None:
            loss = first if cell["loss"] is None else min(cell["loss"], first)
            if low <= cell["learning_rate"] <= high:
                points.append((math.log(cell["learning_rate"]), loss))
    points.sort()
    if len(points) < 2:
        return None
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))
    return area / (points[-1][0] - points[0][0]) - min(y for _, y in points)


def add_sensitivity(rungs: Sequence[Mapping[str, Any]]) -> None:
    """For each size in `rungs`, add the sensitivity of every row that learned at the size.

    The sensitivity covers the range of rates that was tested at every size.
    """
    for row in rungs[0]["rows"]:
        tables = [rung["rows"][row]["cells"] for rung in rungs if row in rung["rows"]]
        seed = next((cell["seed"] for cell in tables[0]), 0)
        done = [[c for c in cells if c["status"] != MISSING] for cells in tables]
        rates = [{c["learning_rate"] for c in cells if c["seed"] == seed} for cells in done]
        if not all(rates):
            continue
        low, high = max(map(min, rates)), min(map(max, rates))
        for rung in rungs:
            if learned(rung, row):
                found = sensitivity(rung["rows"][row]["cells"], seed, low, high)
                rung["rows"][row]["sensitivity"] = found
                rung["rows"][row]["sensitivity_over"] = [low, high]


def learned(rung: Mapping[str, Any], row: str) -> bool:
    return "best_rate" in rung["rows"].get(row, {})


def why_no_best_rate(found: Mapping[str, Any] | None) -> str:
    """Say why a row has no best rate at a size, from its results there (None without any)."""
    if found is None or found.get("waiting"):
        return "is unfinished"
    allowed = " at the rates that the budget allowed" if found.get("left_out") else ""
    return f"did not learn{allowed}"
