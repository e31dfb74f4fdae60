"""Grid over a recipe's fields. Each point of the grid is a run, called a cell.

A comparison's folder contains the specification (sweep.json) and a directory for each cell. A
cell's directory contains outcome.json after the run has finished.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from magneto.config import ConfigError, differences
from magneto.fields import free_fields
from magneto.files import DamagedError, read_object, write_json
from magneto.recipe import SPEC_FILE, Recipe, load_recipe
from magneto.training.config import TrainingConfig

Spec = TypeVar("Spec")
PLACEMENT, RATE, SEED = "model.placement", "training.learning_rate", "seed"


@dataclass(frozen=True)
class Sweep:
    """A grid over a recipe's fields."""

    recipe: str
    overrides: dict[str, Any]  # dotted fields shared by all cells
    grid: dict[str, list[Any]]  # dotted fields with their values; the cells are the product
    keep_weights: bool = False
    # Values of cells beyond the product: more seeds near each row's best rate.
    further: list[dict[str, Any]] = field(default_factory=list)
    # Recipe of the first cell when sweep.json was last written.
    base: dict[str, Any] = field(default_factory=dict, compare=False)
    probed: bool = False  # whether a few steps of each cell are measured (`probe.ProbeHook`)
    # Whether a cell is stopped at half of its steps if two larger or two smaller rates are better
    # by more than noise (`sweep.is_behind`).
    race: bool = False

    def cells(self) -> list[Cell]:
        """Return a cell for each combination of the grid's values, then the cells in `further`.

        The last field of the grid varies fastest.
        """
        product = [
            Cell(dict(zip(self.grid, values, strict=True)))
            for values in itertools.product(*self.grid.values())
        ]
        known = {cell.name for cell in product}
        # A grown grid may include cells that were added before.
        return product + [cell for v in self.further if (cell := Cell(v)).name not in known]

    def rows(self) -> dict[str, list[Cell]]:
        """Return the runs of each row of the comparison, by the name of the row."""
        found: dict[str, list[Cell]] = {}
        for cell in self.cells():
            found.setdefault(cell.row, []).append(cell)
        return found

    def load(self, cell: Cell) -> Recipe:
        changes = {"training.tensorboard": False, **self.overrides, **cell.values}
        return load_recipe(self.recipe, changes)


@dataclass(frozen=True)
class Cell:
    """One point of a grid: a value for each field of the grid."""

    values: dict[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        parts = [f"{key.rpartition('.')[2]}={value}" for key, value in self.values.items()]
        return ",".join(parts).replace("/", "_")

    @property
    def row(self) -> str:
        """Row of the comparison, named by all values except learning rate and seed."""
        others = {k: v for k, v in self.values.items() if k not in (PLACEMENT, RATE, SEED)}
        parts = [str(self.values[PLACEMENT])] if PLACEMENT in self.values else []
        return ",".join([*parts, *([Cell(others).name] if others else [])]) or "Recipe"


def check_sweep(folder: Path, sweep: Sweep) -> Sweep:
    """Check a sweep, and compare it with the sweep in the folder if there is one.

    Nothing is written.

    Returns:
        The sweep, with the `further` cells of the folder's sweep added.

    Raises:
        ConfigError: If a recipe is wrong or was edited after the comparison began, or if a run is
            repeated.
        ConfigError: If runs would be scored on different data, or the folder contains another
            comparison.
        FileExistsError: If the folder is not empty and contains no comparison.
    """
    if (folder / SPEC_FILE).exists():
        known = read_sweep(folder)
        refuse_other(folder, known, sweep)
        refuse_edited(folder, known)
        new = [values for values in sweep.further if values not in known.further]
        sweep = replace(sweep, further=[*known.further, *new])
    elif folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} already exists and is not empty; choose another --out")
    return replace(sweep, base=json_values(load_cells(sweep)[0]))


def open_sweep(folder: Path, sweep: Sweep) -> Sweep:
    """Check a sweep as `check_sweep` does, and write its specification to the folder."""
    sweep = check_sweep(folder, sweep)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SPEC_FILE, asdict(sweep))
    return sweep


def load_cells(sweep: Sweep) -> list[Recipe]:
    """Return the recipe of every cell.

    Raises:
        ConfigError: If recipes are wrong, a run is repeated, or runs would be scored on
            different data. The error lists all mistakes in recipes.
    """
    refuse_several_data(sweep)
    recipes, problems = [], {}
    for cell in sweep.cells():
        try:
            recipes.append(sweep.load(cell))
        except ConfigError as error:
            problems |= dict.fromkeys(error.lines)
    if problems:
        raise ConfigError(list(problems))
    refuse_repeated(sweep, recipes)
    return recipes


def read_sweep(folder: Path) -> Sweep:
    return read_spec(folder / SPEC_FILE, Sweep, "comparison")


def read_spec(path: Path, kind: Callable[..., Spec], what: str) -> Spec:
    """Read the specification of a comparison or ladder.

    Error messages use `what` as the name of the specification.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {what} in {path.parent} (there is no {path.name})")
    try:
        return kind(**read_object(path))
    except TypeError as error:  # wrong keys
        raise DamagedError(f"{path} is damaged: {error}") from error


def cell_directory(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / cell.name


def is_done(folder: Path, cell: Cell) -> bool:
    return read_result(folder, cell) is not None


def read_result(folder: Path, cell: Cell) -> dict[str, Any] | None:
    path = cell_directory(folder, cell) / "outcome.json"
    try:
        return read_object(path, "status", "step") if path.exists() else None
    except DamagedError as error:
        again = f"remove {path.parent} to train this run again"
        raise DamagedError(f"{error}; {again}") from error


def refuse_several_data(sweep: Sweep) -> None:
    """Refuse a grid whose runs would be scored on different data.

    A grid over augmentation is allowed, because augmentation changes only training data.
    """
    lines = [
        f"{name}: scores on different data cannot be compared; run a separate comparison for each "
        "value, each with its own --out"
        for name, values in sweep.grid.items()
        if len(values) > 1
        and (name.startswith("data.") or name == "training.evaluate_limit")
        and "augmentation" not in name
    ]
    if lines:
        raise ConfigError(lines)


def refuse_repeated(sweep: Sweep, recipes: Sequence[Recipe]) -> None:
    """Refuse a grid that repeats a run, because two equal runs would count as two seeds."""
    names: dict[str, str] = {}
    for cell, loaded in zip(sweep.cells(), recipes, strict=True):
        recipe = json.dumps(json_values(loaded), sort_keys=True)
        if recipe in names:
            raise ConfigError([f"{names[recipe]} and {cell.name} are the same run; "
                               "give each value of the grid once"])  # fmt: skip
        if cell.name in names.values():
            raise ConfigError([f"two runs of the grid have the same directory, {cell.name}; put "
                               "one of them into a separate comparison (--out)"])  # fmt: skip
        names[recipe] = cell.name


def refuse_other(folder: Path, known: Sweep, sweep: Sweep) -> None:
    """Refuse a sweep that does more than add grid values to the folder's sweep."""
    before, now = asdict(known), asdict(sweep)
    ignored = ("base", "further")
    different = [name for name in now if name not in ignored and before[name] != now[name]]
    sweep = replace(sweep, further=known.further)
    grown = {cell.name for cell in known.cells()} <= {cell.name for cell in sweep.cells()}
    # Cells are named by the last part of a field, which model.max_length and data.max_length share.
    grown = grown and list(known.grid) == list(sweep.grid)
    if different and not (different == ["grid"] and grown):
        verb = "differs" if len(different) == 1 else "differ"
        raise ConfigError([f"{folder} contains another comparison: its {', '.join(different)} "
                           f"{verb} (only values of the grid may be added); choose another "
                           "--out"])  # fmt: skip


def refuse_edited(folder: Path, sweep: Sweep) -> None:
    """Refuse a recipe that was edited after the comparison began."""
    now = json_values(sweep.load(sweep.cells()[0]))
    found = differences(sweep.base, now)
    # learning_rates do not matter, because the grid sets the learning rate.
    free = ("learning_rates", *(f"training.{name}" for name in free_fields(TrainingConfig)))
    edited = [f"{name} is {new} (was {old})" for name, old, new in found
              if not name.startswith(free)]  # fmt: skip
    if edited:
        raise ConfigError([f"{sweep.recipe} was edited after the comparison in {folder} began: "
                           f"{', '.join(edited)}; undo the edit, or choose another "
                           "--out"])  # fmt: skip


def json_values(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(recipe.to_mapping(), default=str))
