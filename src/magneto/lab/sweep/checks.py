"""What a grid is refused for before anything runs: the same run twice, an edited recipe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from magneto.config import ConfigError
from magneto.lab.sweep.cells import Sweep
from magneto.recipe import Recipe
from magneto.training.resume import differences

# Fields that change how fast a run goes and what it writes, not what comes out.
WITHOUT_EFFECT = (
    *("training.num_workers", "training.threads", "training.async_save", "training.tensorboard"),
    *("training.device", "training.save_every", "training.log_every"),
)


def refuse_repeated(sweep: Sweep, recipes: Sequence[Recipe]) -> None:
    """Refuse a grid that holds one run twice: it would count as two seeds.

    Args:
        sweep: The grid.
        recipes: Of its cells.

    Raises:
        ConfigError: If a field has a value twice, or two cells share a directory or a recipe.
    """
    lines = [
        f"{name} has one value twice: {', '.join(twice)}; give each once"
        for name, values in sweep.grid.items()
        if (twice := repeated([str(value) for value in values]))
    ]
    if lines:
        raise ConfigError(lines)
    cells = sweep.cells()
    if twice := repeated([cell.name for cell in cells]):
        raise ConfigError([f"two cells of the grid would share the directory {twice[0]}: "
                           "compare these values in two folders (--out)"])  # fmt: skip
    held: dict[str, str] = {}
    for cell, loaded in zip(cells, recipes, strict=True):
        recipe = json.dumps(loaded.to_mapping(), default=str, sort_keys=True)
        if recipe in held:
            raise ConfigError([f"cells {held[recipe]} and {cell.name} are one run twice: "
                               "give each value of the grid once"])  # fmt: skip
        held[recipe] = cell.name


def refuse_other(folder: Path, held: Sweep, sweep: Sweep) -> None:
    """Refuse a grid in a folder that holds another one.

    Raises:
        ConfigError: If they differ in more than values that were added to the grid.
    """
    before, now = asdict(held), asdict(sweep)
    kept = ("base", "further")  # which the folder knows best
    different = [name for name in now if name not in kept and before[name] != now[name]]
    sweep = replace(sweep, further=held.further)
    grown = {cell.name for cell in held.cells()} <= {cell.name for cell in sweep.cells()}
    # Cells are named by the last part of a field: model.max_length and data.max_length look alike.
    grown = grown and list(held.grid) == list(sweep.grid)
    if different and not (different == ["grid"] and grown):
        raise ConfigError([f"{folder} holds another comparison (its {', '.join(different)} "
                           "differ; a grid may grow, not shrink): give another "
                           "--out"])  # fmt: skip


def base_of(sweep: Sweep, first: Recipe) -> dict[str, Any]:
    """Return what all cells have in common: the first one's recipe less the grid's own fields.

    A placement's own rate (`learning_rates`) goes with the rate, where that is in the grid.

    Args:
        sweep: The grid.
        first: Recipe of its first cell.
    """
    recipe = json.loads(json.dumps(first.to_mapping(), default=str))
    dropped = [*sweep.grid, *WITHOUT_EFFECT]
    if "training.learning_rate" in sweep.grid:
        dropped.append("learning_rates")
    for dotted in dropped:
        section, _, name = dotted.partition(".")
        if not name:
            recipe.pop(section, None)
        elif isinstance(recipe.get(section), dict):
            recipe[section].pop(name, None)
    return recipe


def refuse_edited(folder: Path, sweep: Sweep) -> None:
    """Refuse a recipe that is no longer what it was when the comparison began.

    Raises:
        ConfigError: If a field outside the grid has another value; names it with both.
    """
    first = sweep.load(sweep.cells()[0])
    edited = [line for _, line in differences(sweep.base, base_of(sweep, first))]
    if edited:
        raise ConfigError([f"{folder} began with another {sweep.recipe}: {', '.join(edited)}; "
                           "undo the edit, or give another --out"])  # fmt: skip


def repeated(words: Sequence[str]) -> list[str]:
    """Return the words that are there more than once, each once."""
    return [word for word, count in Counter(words).items() if count > 1]
