"""What a comparison measures besides its runs: updates against depth, activations by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from magneto.files import plain, read_object, write_json
from magneto.lab.probe.probe import find_stacks, last_stack
from magneto.lab.probe.short_run import initial_model, short_run
from magneto.lab.probe.update import Update, growth, measure_growth, measured_shape
from magneto.lab.sweep.cells import Sweep
from magneto.lab.sweep.compare import first_cells, only
from magneto.nn.config import TransformerConfig
from magneto.progress import SILENT, Progress
from magneto.recipe import Recipe
from magneto.theory.bounds import bound, find_family
from magneto.theory.depth import Depth, Stack
from magneto.theory.placement import Placement
from magneto.theory.scales import derived_scales
from magneto.training.task import Task

FILE = "measurements.json"
DEPTHS = (6, 12, 24, 48)
# Updates differ more between seeds than between inputs.
SEEDS, SAMPLES = range(6), 2
Plan = tuple[TransformerConfig, Stack]
"""A stack whose updates are measured: its shape, of one layer, and which one it is."""


def measure(folder: Path, sweep: Sweep, progress: Progress = SILENT) -> dict[str, Any]:
    """Measure every row of a sweep, or read what was measured in its folder before.

    Args:
        folder: Of the comparison; holds `FILE` afterwards.
        sweep: Its first cell of each row says what is measured.
        progress: Shows it.

    Returns:
        "width" of the stacks whose updates are measured (None if rows differ in it), "depths",
        "updates" (see `update.Update`), "growth" (`update.Growth`), "bounds" (form of the bound to
        its value at each depth, by row) and "activations" (RMS of each layer's output at
        initialisation, by row and layer name). A "placement" in updates and growth is a row's name.
    """
    path, first = folder / FILE, first_cells(sweep)
    if path.is_file():
        known = read_object(path)
        if list(known.get("activations", ())) == list(first):
            return known
    found = measure_recipes({row: sweep.load(cell) for row, cell in first.items()}, progress)
    write_json(path, found)
    return found


def why_not_measured(task: Task) -> str:
    """Return why a task's model can't be measured, "" where nothing is known against it.

    The model is built without memory; one that can't be is looked at when it is measured.

    Args:
        task: Prepared.
    """
    try:
        with torch.device("meta"):
            model = task.build_model()
    except (RuntimeError, ValueError):
        return ""
    try:
        find_stacks(model)
    except ValueError as reason:
        return str(reason)
    return ""


def measure_recipes(recipes: Mapping[str, Recipe], progress: Progress = SILENT) -> dict[str, Any]:
    """Measure recipes, by the names of their rows in a comparison."""
    activations: dict[str, dict[str, float | None]] = {}
    plans: dict[str, Plan] = {}
    for name, recipe in recipes.items():
        task = recipe.build_task()
        task.prepare(SILENT)
        model = initial_model(task, recipe.training, recipe.seed)
        last = last_stack(model)
        # Its own depth is left out: every row is measured at the same depths.
        shape = replace(measured_shape(last.config), layers=1)
        plans[name] = (shape, "decoder" if last.causal else "encoder")
        run = short_run(task, model, recipe.training, seed=recipe.seed, steps=1, rates=())
        activations[name] = {layer.name: layer.activation_rms for layer in run.first.layers}
    updates = measure_updates(plans, progress)
    bounds = {name: bounds_over(shape.row, DEPTHS, stack) for name, (shape, stack) in plans.items()}
    return plain(
        {
            "width": only({shape.width for shape, _ in plans.values()}),
            "depths": list(DEPTHS),
            "updates": [asdict(update) for update in updates],
            "growth": [asdict(part) for part in growth(updates)],
            "bounds": bounds,
            "activations": activations,
        }
    )


def measure_updates(plans: Mapping[str, Plan], progress: Progress = SILENT) -> list[Update]:
    """Measure the updates of each row; once for rows whose stacks are alike."""
    known: dict[Plan, list[Update]] = {}
    each = sum(DEPTHS) * len(SEEDS)
    whole = each * len(set(plans.values()))
    for shape, stack in dict.fromkeys(plans.values()):
        before = each * len(known)
        known[shape, stack] = measure_growth(
            shape,
            placements=[shape.placement],
            depths=DEPTHS,
            seeds=SEEDS,
            samples=SAMPLES,
            stack=stack,
            progress=lambda done, total, before=before: progress.update(
                "measuring updates, layers", before + done, whole
            ),
        )
    return [
        replace(update, placement=name) for name, plan in plans.items() for update in known[plan]
    ]


def bounds_over(row: Placement, depths: Sequence[int], stack: Stack) -> dict[str, list[float]]:
    """Return each form of the bound at each depth; nothing where none is derived."""
    try:
        family = find_family(row)
    except ValueError:
        return {}
    scales = [derived_scales(row, Depth(stack, layers)) for layers in depths]
    return {form: [bound(row, part, form=form) for part in scales] for form in family.backward}
