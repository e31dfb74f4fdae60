"""A comparison as JSON values: results, conclusions, measurements, and how to repeat it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from magneto.files import plain, read_object, write_json
from magneto.lab.answer import answer
from magneto.lab.diagnosis import diagnose
from magneto.lab.grid import RATE, SEED, Cell, Sweep, cell_directory
from magneto.lab.outcome import Judge, Scored, score_cell, summarise
from magneto.lab.probe import last_stack
from magneto.lab.short_run import initial_model, short_run
from magneto.lab.update import bounds_over, growth, measure_growth, measured_shape
from magneto.nn.config import TransformerConfig
from magneto.progress import SILENT, Progress
from magneto.recipe import Recipe
from magneto.theory.placement import Stack
from magneto.training.logging import environment, read_environments

# Fields of a run's environment to report.
ENVIRONMENT = ("python", "packages", "processor", "cores", "threads", "gpus", "commit")
ABSOLUTE = re.compile(r"(?<![\w.:/])~?/(?:[^\s'\"/=,:]+/)*([^\s'\"/=,:]+)/?")
FILE = "measurements.json"
DEPTHS = (6, 12, 24, 48)
# More seeds than inputs (samples), because updates differ more between seeds than between inputs.
SEEDS, SAMPLES = range(6), 2
Plan = tuple[TransformerConfig, Stack]
"""Stack to measure: its configuration, and its kind ("encoder" or "decoder"). The configuration has
one layer: `measure_growth` replaces the number of layers by each depth in `DEPTHS`."""


def collect(folder: Path, sweep: Sweep, command: str) -> dict[str, Any]:
    """Return a comparison as JSON values: runs, summaries, conclusions and how to repeat it.

    Absolute paths are cut to their last component, so that the result can be published.
    """
    recipe = sweep.load(sweep.cells()[0])
    task = recipe.build_task()
    judge = Judge.of(task, recipe.training.evaluate_limit)
    cells = [score_cell(folder, cell, judge) for cell in sweep.cells()]
    runs = [cell_directory(folder, cell) for cell in sweep.cells()]
    comparison = {
        "recipe": without_places(sweep.recipe),
        "task": recipe.task,
        "metric": judge.metric,
        "higher_is_better": judge.higher_is_better,
        "baseline": judge.baseline,
        "threshold": judge.threshold,
        "unit": task.unit,
        "overrides": without_places(sweep.overrides),
        "command": without_places(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environments(runs),
        "config": without_places(recipe.to_mapping()),
        "placements": list(sweep.rows()),
        "learning_rates": [float(rate) for rate in sweep.grid[RATE]],
        "seeds": [int(seed) for seed in sweep.grid[SEED]],
        "seeds_near_best": sorted({int(values[SEED]) for values in sweep.further}),
        "cells": [asdict(cell) for cell in cells],
    }
    return comparison | conclusions(comparison)


def conclusions(comparison: Mapping[str, Any]) -> dict[str, Any]:
    cells = [Scored(**cell) for cell in comparison["cells"]]
    higher = comparison["higher_is_better"]
    summaries = [summarise(cells, name, higher) for name in comparison["placements"]]
    return {
        "summary": [asdict(summary) for summary in summaries],
        "answer": answer(summaries, higher, comparison["metric"]),
    }


def with_more_seeds(folder: Path, sweep: Sweep, seeds: Sequence[int]) -> Sweep:
    """Add runs with `seeds` to a finished sweep, at each row's best rate and the rates next to it.

    If a row of the comparison has no best rate, the row gets no further runs.
    """
    cells = sweep.cells()
    recipe = sweep.load(cells[0])
    judge = Judge.of(recipe.build_task(), recipe.training.evaluate_limit)
    scored = [score_cell(folder, cell, judge) for cell in cells]
    new = []
    for row, own in sweep.rows().items():
        best = summarise(scored, row, judge.higher_is_better).best_learning_rate
        if best is None:
            continue
        mine = {float(cell.values[RATE]): cell.values for cell in own}
        rates = sorted(mine)
        place = rates.index(best)
        near = rates[max(place - 1, 0) : place + 2]
        new += [{**mine[rate], SEED: seed} for rate in near for seed in seeds]
    known = {cell.name for cell in cells}
    new = [values for values in new if Cell(values).name not in known]
    return replace(sweep, further=[*sweep.further, *new])


def environments(runs: Iterable[Path]) -> dict[str, list[str]]:
    """Return all distinct values of each entry in the runs' environment.json files.

    If no run has an environment.json, the values describe the current process.
    """
    paths = sorted(run / "environment.json" for run in runs)
    records = [each for path in paths if path.is_file() for each in read_environments(path)]
    found: dict[str, dict[str, None]] = {}
    for record in records or [environment()]:
        for key in ENVIRONMENT:
            value = record.get(key)
            if isinstance(value, list):
                counts = sorted(Counter(value).items())
                value = ", ".join(f"{count} x {kind}" for kind, count in counts)
            values = value if isinstance(value, Mapping) else {key: value}
            for name, each in values.items():
                if each not in (None, ""):
                    found.setdefault(name, {})[str(each)] = None
    return {name: list(values) for name, values in found.items()}


def without_places(value: Any) -> Any:
    """Return nested values in which each absolute path is cut to its last component."""
    if isinstance(value, str):
        return ABSOLUTE.sub(r"\1", value)
    if isinstance(value, dict):
        return {key: without_places(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(part) for part in value]
    return value


def measure(
    folder: Path, sweep: Sweep, failed: Sequence[str], progress: Progress = SILENT
) -> dict[str, Any]:
    """Measure the updates and activations of each row of a comparison.

    Each row is measured with the recipe of its first run. Measurements that are already in the
    folder are read and not repeated. In the rows `failed`, no run learned. For each of these rows,
    a probe looks for the reason.

    Returns:
        A dictionary with these keys. In "updates" and "growth", "placement" is the row's name.

        - "width": width of the measured stacks; None if rows differ.
        - "depths": measured depths in layers.
        - "updates": see `update.Update`.
        - "growth": see `update.Growth`.
        - "bounds": bounds on the model update at each depth, for each row and each `bounds.Form`.
        - "activations": RMS of each layer's output at initialisation, for each row.
        - "reasons": the probe's findings, for each failed row.
    """
    path, first = folder / FILE, {row: cells[0] for row, cells in sweep.rows().items()}
    found = read_object(path) if path.is_file() else {}
    if list(found.get("activations", ())) != list(first):
        found = measure_recipes({row: sweep.load(cell) for row, cell in first.items()}, progress)
        write_json(path, found)
    # Reasons are kept by cell, because the first cell of a row changes when the grid gets a smaller
    # rate.
    probed = found.setdefault("probed", {})
    for cell in (first[row] for row in failed):
        if cell.name not in probed:
            probed[cell.name] = diagnose(sweep.load(cell), steps=5, seeds=0).verdict.failures
    write_json(path, found)
    return {**found, "reasons": {row: probed[first[row].name] for row in failed}}


def measure_recipes(recipes: Mapping[str, Recipe], progress: Progress = SILENT) -> dict[str, Any]:
    activations: dict[str, dict[str, float | None]] = {}
    plans: dict[str, Plan] = {}
    for name, recipe in recipes.items():
        task = recipe.build_task()
        task.prepare(SILENT)
        model = initial_model(task, recipe.training, recipe.seed)
        last = last_stack(model)
        # Every row is measured at the same depths, whatever the depth of its recipe.
        shape = replace(measured_shape(last.config), layers=1)
        plans[name] = (shape, "decoder" if last.causal else "encoder")
        run = short_run(task, model, recipe.training, seed=recipe.seed, steps=1, rates=())
        activations[name] = {layer.name: layer.activation_rms for layer in run.first.layers}
    # Rows with equal stacks are measured once.
    known = {
        (shape, stack): measure_growth(
            shape, depths=DEPTHS, seeds=SEEDS, samples=SAMPLES, stack=stack, progress=progress
        )
        for shape, stack in dict.fromkeys(plans.values())
    }
    updates = [replace(update, placement=name)
               for name, plan in plans.items() for update in known[plan]]  # fmt: skip
    widths = {shape.width for shape, _ in plans.values()}
    bounds = {name: bounds_over(shape.row, DEPTHS, stack) for name, (shape, stack) in plans.items()}
    return plain(
        {
            "width": widths.pop() if len(widths) == 1 else None,
            "depths": list(DEPTHS),
            "updates": [asdict(update) for update in updates],
            "growth": [asdict(part) for part in growth(updates)],
            "bounds": bounds,
            "activations": activations,
        }
    )
