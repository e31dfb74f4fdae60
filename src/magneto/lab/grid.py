"""A grid over a recipe's fields: its cells, their folder, and what it is refused for.

The folder holds sweep.json (what the grid is) and a directory per cell, which is a run of its own
with an outcome.json once it is done.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from magneto.config import ConfigError
from magneto.fields import free_fields
from magneto.files import DamagedError, read_object, write_json
from magneto.recipe import Recipe, load_recipe
from magneto.training.config import TrainingConfig

Spec = TypeVar("Spec")
PLACEMENT, RATE, SEED = "model.placement", "training.learning_rate", "seed"
SPEC_FILE = "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """A grid over a recipe's fields.

    Attributes:
        recipe: Name or path of the recipe.
        overrides: Dotted fields that are the same in every cell.
        grid: Dotted fields with the values they take; cells are their product.
        keep_weights: Whether cells keep their weights.
        further: Values of cells beyond the product: more seeds near each row's best rate.
        base: The first cell's recipe, when the folder began or grew.
        probed: Whether a few steps of each cell are watched (`probe.ProbeHook`).
        race: Whether a cell that is behind beyond noise at half its steps ends there.
    """

    recipe: str
    overrides: dict[str, Any]
    grid: dict[str, list[Any]]
    keep_weights: bool = False
    further: list[dict[str, Any]] = field(default_factory=list)
    base: dict[str, Any] = field(default_factory=dict, compare=False)
    probed: bool = False
    race: bool = False

    def cells(self) -> list[Cell]:
        """List the cells: the last field varies fastest; further ones follow."""
        product = [
            Cell(dict(zip(self.grid, values, strict=True)))
            for values in itertools.product(*self.grid.values())
        ]
        known = {cell.name for cell in product}
        # A grid may have grown since over what was further once.
        return product + [cell for v in self.further if (cell := Cell(v)).name not in known]

    def load(self, cell: Cell) -> Recipe:
        """Return a cell's recipe."""
        changes = {"training.tensorboard": False, **self.overrides, **cell.values}
        return load_recipe(self.recipe, changes)


@dataclass(frozen=True)
class Cell:
    """One point of the grid: a value for each of its fields."""

    values: dict[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        """Name of the cell's directory."""
        parts = [f"{key.rpartition('.')[2]}={value}" for key, value in self.values.items()]
        return ",".join(parts).replace("/", "_")

    @property
    def row(self) -> str:
        """What a comparison sets side by side: the placement, and any further field of the grid."""
        others = {k: v for k, v in self.values.items() if k not in (PLACEMENT, RATE, SEED)}
        parts = [str(self.values[PLACEMENT])] if PLACEMENT in self.values else []
        return ",".join([*parts, *([Cell(others).name] if others else [])]) or "the recipe"


def open_sweep(folder: Path, sweep: Sweep) -> Sweep:
    """Write what the grid is; or find it written, and the same or a part of this one.

    Returns:
        What is written: with the further cells that the folder has.

    Raises:
        ConfigError: If a cell's recipe is wrong, a run is there twice, rows would be scored on
            different data, the recipe was edited, or the folder holds another comparison.
    """
    refuse_several_data(sweep)
    recipes = load_cells(sweep)
    refuse_repeated(sweep, recipes)
    path = folder / SPEC_FILE
    if path.exists():
        held = read_sweep(folder)
        refuse_other(folder, held, sweep)
        refuse_edited(folder, held)
        known = [values for values in held.further if values not in sweep.further]
        sweep = replace(sweep, further=[*known, *sweep.further])
    elif folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is there already and not empty")
    folder.mkdir(parents=True, exist_ok=True)
    sweep = replace(sweep, base=plainly(recipes[0]))
    write_json(path, asdict(sweep))
    return sweep


def load_cells(sweep: Sweep) -> list[Recipe]:
    """Return every cell's recipe.

    Raises:
        ConfigError: If some are wrong; names each mistake once.
    """
    recipes, problems = [], {}
    for cell in sweep.cells():
        try:
            recipes.append(sweep.load(cell))
        except ConfigError as error:
            problems |= dict.fromkeys(error.lines)
    if problems:
        raise ConfigError(list(problems))
    return recipes


def read_sweep(folder: Path) -> Sweep:
    """Return the grid of a folder.

    Raises:
        FileNotFoundError: If there is none in it.
    """
    return read_spec(folder / SPEC_FILE, Sweep, "comparison")


def read_spec(path: Path, kind: Callable[..., Spec], what: str) -> Spec:
    """Return what a folder's file says that the folder is.

    Args:
        path: The file.
        kind: Made of its values.
        what: The folder is, for the message.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {what} in {path.parent} (there is no {path.name})")
    try:
        return kind(**read_object(path))
    except TypeError as error:  # other keys
        raise DamagedError(f"{path} is damaged: {error}") from error


def cell_directory(folder: Path, cell: Cell) -> Path:
    """Return where a cell's run lies."""
    return folder / "cells" / cell.name


def is_done(folder: Path, cell: Cell) -> bool:
    """Return whether a cell has ended by itself: finished or diverged."""
    result = read_result(folder, cell)
    return result is not None and result["status"] != "interrupted"


def read_result(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """Return a cell's result, or None if it has none yet."""
    path = cell_directory(folder, cell) / "outcome.json"
    return read_object(path, "status", "step") if path.exists() else None


def refuse_several_data(sweep: Sweep) -> None:
    """Refuse a grid over what its runs are scored on; `data.augmentation` is of training alone.

    Raises:
        ConfigError: If a field of the data, or how much of it is scored, has several values.
    """
    lines = [
        f"{name}: scores on different data cannot be ranked against each other: compare each value "
        "in a folder of its own (--out)"
        for name, values in sweep.grid.items()
        if len(values) > 1
        and (name.startswith("data.") or name == "training.evaluate_limit")
        and "augmentation" not in name
    ]
    if lines:
        raise ConfigError(lines)


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
        recipe = json.dumps(plainly(loaded), sort_keys=True)
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


def refuse_edited(folder: Path, sweep: Sweep) -> None:
    """Refuse a recipe that is no longer what it was when the comparison began.

    Raises:
        ConfigError: If a field has another value; names it with both.
    """
    from magneto.training.checkpoint import differences

    now = plainly(sweep.load(sweep.cells()[0]))
    found = differences(sweep.base, now)
    # Nor does it matter what a placement's own rates are, in whose place the grid's are.
    free = ("learning_rates", *(f"training.{name}" for name in free_fields(TrainingConfig)))
    edited = [line for name, line in found if not name.startswith(free)]
    if edited:
        raise ConfigError([f"{folder} began with another {sweep.recipe}: {', '.join(edited)}; "
                           "undo the edit, or give another --out"])  # fmt: skip


def repeated(words: Sequence[str]) -> list[str]:
    """Return the words that are there more than once, each once."""
    return [word for word, count in Counter(words).items() if count > 1]


def plainly(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as it is read from JSON."""
    return json.loads(json.dumps(recipe.to_mapping(), default=str))
