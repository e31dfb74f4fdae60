"""A comparison as plain values: what a grid of runs says, and how to repeat it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from magneto.analysis.report.provenance import environments, without_places
from magneto.analysis.sweep.answer import answer
from magneto.analysis.sweep.judged import Judge, score_cell
from magneto.analysis.sweep.summary import summarise
from magneto.analysis.sweep.sweep import RATE, SEED, Sweep, cell_directory


def collect(folder: Path, sweep: Sweep, command: str) -> dict[str, Any]:
    """Return a comparison as plain values: cells, summaries, the answer, how to repeat it.

    Absolute paths are cut to their last name, so that the result can be shown to others.
    """
    recipe = sweep.load(sweep.cells()[0])
    task = recipe.build_task()
    baseline = task.baseline(recipe.training.evaluate_limit).get(task.primary_metric)
    judge = Judge(task.primary_metric, task.higher_is_better, baseline)
    cells = [score_cell(folder, cell, judge) for cell in sweep.cells()]
    placements = list(dict.fromkeys(cell.row for cell in sweep.cells()))
    summaries = [summarise(cells, name, task.higher_is_better) for name in placements]
    runs = [cell_directory(folder, cell) for cell in sweep.cells()]
    return {
        "recipe": without_places(sweep.recipe),
        "task": recipe.task,
        "metric": task.primary_metric,
        "higher_is_better": task.higher_is_better,
        "baseline": baseline,
        "threshold": judge.threshold,
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
