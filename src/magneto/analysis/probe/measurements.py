"""What a comparison measures besides its runs: updates against depth, activations by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from magneto.analysis.probe.probe import find_stacks
from magneto.analysis.probe.short_run import initial_model, short_run
from magneto.analysis.probe.update import growth, measure_growth, measured_shape
from magneto.analysis.sweep.cells import PLACEMENT, Sweep
from magneto.files import plain, read_object, write_json
from magneto.progress import SILENT, Progress
from magneto.recipe import Recipe
from magneto.theory.bounds import bound, find_family
from magneto.theory.depth import Depth, Stack
from magneto.theory.placement import Placement, find_placement
from magneto.theory.scales import derived_scales
from magneto.training.task import Task

FILE = "measurements.json"
DEPTHS = (6, 12, 24, 48)
# Updates differ more between seeds than between inputs.
SEEDS, SAMPLES = range(6), 2


def measure(folder: Path, sweep: Sweep, progress: Progress = SILENT) -> dict[str, Any]:
    """Measure every placement of a sweep, or read what was measured in its folder before.

    Args:
        folder: Of the comparison; holds `FILE` afterwards.
        sweep: Its first cell of each placement says what is measured.
        progress: Shows it.

    Returns:
        "width" of the stacks whose updates are measured, "depths", "updates" (see
        `update.Update`), "growth" (`update.Growth`), "bounds" (form of the bound to its value at
        each depth, by placement) and "activations" (RMS of each layer's output at initialisation,
        by placement and layer name).
    """
    path, rows = folder / FILE, [str(name) for name in sweep.grid[PLACEMENT]]
    if path.is_file():
        known = read_object(path)
        if list(known.get("activations", ())) == rows:
            return known
    first = {str(cell.values[PLACEMENT]): cell for cell in reversed(sweep.cells())}
    found = measure_recipes({name: sweep.load(first[name]) for name in rows}, progress)
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
    """Measure recipes that differ in their placement, by its name."""
    activations: dict[str, dict[str, float | None]] = {}
    stacks = []
    for name, recipe in recipes.items():
        task = recipe.build_task()
        task.prepare(SILENT)
        model = initial_model(task, recipe.training, recipe.seed)
        stacks.append(list(find_stacks(model).values())[-1])
        run = short_run(task, model, recipe.training, seed=recipe.seed, steps=1, rates=())
        activations[name] = {layer.name: layer.activation_rms for layer in run.first.layers}
    stack: Stack = "decoder" if stacks[-1].causal else "encoder"
    shape = measured_shape(stacks[-1].config)
    updates = measure_growth(
        shape,
        placements=list(recipes),
        depths=DEPTHS,
        seeds=SEEDS,
        samples=SAMPLES,
        stack=stack,
        progress=lambda done, total: progress.update("measuring updates, layers", done, total),
    )
    bounds = {name: bounds_over(find_placement(name), DEPTHS, stack) for name in recipes}
    return plain(
        {
            "width": shape.width,
            "depths": list(DEPTHS),
            "updates": [asdict(update) for update in updates],
            "growth": [asdict(part) for part in growth(updates)],
            "bounds": bounds,
            "activations": activations,
        }
    )


def bounds_over(row: Placement, depths: Sequence[int], stack: Stack) -> dict[str, list[float]]:
    """Return each form of the bound at each depth; nothing where none is derived."""
    try:
        family = find_family(row)
    except ValueError:
        return {}
    scales = [derived_scales(row, Depth(stack, layers)) for layers in depths]
    return {form: [bound(row, part, form=form) for part in scales] for form in family.backward}
