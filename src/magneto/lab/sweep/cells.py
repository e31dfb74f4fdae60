"""A grid over a recipe's fields as a plain value: its cells, their recipes and their names."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from magneto.recipe import Recipe, load_recipe

PLACEMENT, RATE, SEED = "model.placement", "training.learning_rate", "seed"


@dataclass(frozen=True)
class Sweep:
    """A grid over a recipe's fields.

    Attributes:
        recipe: Name or path of the recipe.
        overrides: Dotted fields that are the same in every cell.
        grid: Dotted fields with the values they take; cells are their product.
        keep_weights: Whether cells keep their weights.
        further: Values of cells beyond the product: more seeds near each row's best rate.
        base: What the recipe's other fields were when the folder began.
    """

    recipe: str
    overrides: dict[str, Any]
    grid: dict[str, list[Any]]
    keep_weights: bool = False
    further: list[dict[str, Any]] = field(default_factory=list)
    base: dict[str, Any] = field(default_factory=dict, compare=False)

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

    @property
    def data(self) -> str:
        """What the grid sets of the data that is scored; "" where it sets nothing of it.

        What is done to training examples alone (`data.augmentation`) is none of it.
        """
        return Cell({k: v for k, v in self.values.items() if is_of_data(k)}).name


def is_of_data(name: str) -> bool:
    """Return whether a dotted field of a recipe decides what its runs are scored on."""
    section, *parts = name.split(".")
    return section == "data" and not any(part.endswith("augmentation") for part in parts)
