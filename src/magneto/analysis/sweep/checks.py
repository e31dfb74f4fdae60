"""What a grid is refused for before anything runs: the same run twice, an edited recipe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from magneto.config import ConfigError

if TYPE_CHECKING:
    from magneto.analysis.sweep.sweep import Sweep


def refuse_repeated(sweep: Sweep) -> None:
    """Refuse a grid that holds one run twice: it would count as two seeds.

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
    for cell in cells:
        recipe = json.dumps(sweep.load(cell).to_mapping(), default=str, sort_keys=True)
        if recipe in held:
            raise ConfigError([f"cells {held[recipe]} and {cell.name} are one run twice: "
                               "give each value of the grid once"])  # fmt: skip
        held[recipe] = cell.name


def repeated(words: Sequence[str]) -> list[str]:
    """Return the words that are there more than once, each once."""
    return [word for word, count in Counter(words).items() if count > 1]
