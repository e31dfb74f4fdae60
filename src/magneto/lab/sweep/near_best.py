"""More seeds where they matter: at each row's best learning rate, and at its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from magneto.lab.sweep.cells import RATE, SEED, Cell, Sweep
from magneto.lab.sweep.compare import judges_of
from magneto.lab.sweep.judged import score_cell
from magneto.lab.sweep.summary import summarise


def with_more_seeds(folder: Path, sweep: Sweep, seeds: Sequence[int]) -> Sweep:
    """Return a finished sweep with further cells, if there are any that it has not.

    Args:
        folder: Of the sweep.
        sweep: Every cell of it has a result.
        seeds: What is wanted near each row's best rate.
    """
    judges = judges_of(sweep)
    scored = [score_cell(folder, cell, judges[cell.row]) for cell in sweep.cells()]
    higher = next(iter(judges.values())).higher_is_better
    best = {row: summarise(scored, row, higher).best_learning_rate for row in judges}
    known = {cell.name for cell in sweep.cells()}
    new = [
        values
        for row, rate in best.items()
        for values in around(sweep, row, rate, seeds)
        if Cell(values).name not in known
    ]
    return replace(sweep, further=[*sweep.further, *new])


def around(
    sweep: Sweep, row: str, rate: float | None, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the values of a row's cells at a rate and its neighbours, for each of the seeds.

    None for a row that learned at no rate: more seeds would not make one best.
    """
    mine = {float(c.values[RATE]): c for c in sweep.cells() if c.row == row}
    rates = sorted(mine)
    if rate is None:
        return []
    place = rates.index(rate)
    near = rates[max(place - 1, 0) : place + 2]
    return [{**mine[one].values, SEED: seed} for one in near for seed in seeds]
