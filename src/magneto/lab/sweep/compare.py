"""A comparison as plain values: what a grid of runs says, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from magneto.config import ConfigError
from magneto.lab.report.provenance import environments, without_places
from magneto.lab.sweep.answer import answer
from magneto.lab.sweep.cells import RATE, SEED, Cell, Sweep
from magneto.lab.sweep.judged import Judge, Scored, score_cell
from magneto.lab.sweep.summary import summarise
from magneto.lab.sweep.sweep import cell_directory


def collect(folder: Path, sweep: Sweep, command: str) -> dict[str, Any]:
    """Return a comparison as plain values: cells, summaries, the answer, how to repeat it.

    Absolute paths are cut to their last name, so that the result can be shown to others.
    """
    recipe = sweep.load(sweep.cells()[0])
    task = recipe.build_task()
    judges = judges_of(sweep)
    cells = [score_cell(folder, cell, judges[cell.row]) for cell in sweep.cells()]
    placements = list(judges)
    data = data_of(sweep)
    shared = {judge.baseline for judge in judges.values()}
    judge = Judge(task.primary_metric, task.higher_is_better, only(shared))
    runs = [cell_directory(folder, cell) for cell in sweep.cells()]
    comparison = {
        "recipe": without_places(sweep.recipe),
        "task": recipe.task,
        "metric": task.primary_metric,
        "higher_is_better": task.higher_is_better,
        "baseline": judge.baseline,
        "threshold": judge.threshold,
        "baselines": {row: held.baseline for row, held in judges.items()},
        "data": data,
        "unit": task.unit,
        "overrides": without_places(sweep.overrides),
        "command": without_places(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environments(runs),
        "config": without_places(recipe.to_mapping()),
        "placements": placements,
        "learning_rates": [float(rate) for rate in sweep.grid[RATE]],
        "seeds": [int(seed) for seed in sweep.grid[SEED]],
        "seeds_near_best": sorted({int(values[SEED]) for values in sweep.further}),
        "cells": [asdict(cell) for cell in cells],
    }
    return comparison | conclusions(comparison)


def conclusions(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a comparison's cells say: a summary of each row, and the answer."""
    cells = [Scored(**cell) for cell in comparison["cells"]]
    higher = comparison["higher_is_better"]
    summaries = [summarise(cells, name, higher) for name in comparison["placements"]]
    return {
        "summary": [asdict(summary) for summary in summaries],
        "answer": answer(summaries, higher, comparison["metric"], comparison["data"]),
    }


def judges_of(sweep: Sweep) -> dict[str, Judge]:
    """Return what the scores of each row are held against: the baseline on the row's own data."""
    known: dict[str, Judge] = {}
    judges: dict[str, Judge] = {}
    for row, cell in first_cells(sweep).items():
        recipe = sweep.load(cell)
        task = recipe.build_task()
        alike = repr((recipe.task, recipe.data, recipe.training.evaluate_limit))
        if alike not in known:
            baseline = task.baseline(recipe.training.evaluate_limit).get(task.primary_metric)
            known[alike] = Judge(task.primary_metric, task.higher_is_better, baseline)
        judges[row] = known[alike]
    return judges


def refuse_several_metrics(sweep: Sweep) -> None:
    """Refuse a grid whose rows have scores of different kinds, before anything runs.

    Raises:
        ConfigError: If the data decides the metric, and the grid has data of several.
    """
    metrics: dict[str, str] = {}
    for row, cell in first_cells(sweep).items():
        metrics.setdefault(sweep.load(cell).build_task().primary_metric, row)
    if len(metrics) > 1:
        said = ", ".join(f"{row} by {metric}" for metric, row in metrics.items())
        raise ConfigError([f"the grid's rows are scored by different metrics ({said}): "
                           "compare each in a folder of its own (--out)"])  # fmt: skip


def first_cells(sweep: Sweep) -> dict[str, Cell]:
    """Return the first cell of each row."""
    found: dict[str, Cell] = {}
    for cell in sweep.cells():
        found.setdefault(cell.row, cell)
    return found


def data_of(sweep: Sweep) -> dict[str, str]:
    """Return what the grid sets of each row's data; nothing where all rows have the same."""
    found = {row: cell.data for row, cell in first_cells(sweep).items()}
    return found if len(set(found.values())) > 1 else {}


def only(values: set[float | None]) -> float | None:
    """Return the one value of a set; None where it has several."""
    return next(iter(values)) if len(values) == 1 else None
