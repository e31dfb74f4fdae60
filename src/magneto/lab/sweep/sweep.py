"""A grid of runs in one folder: independent cells, resumable at any moment, never done twice.

The folder holds sweep.json (what the grid is) and a directory per cell, which is a run of its own
with an outcome.json once it is done. Any number of workers, on any machines that see the folder,
lock cells and run them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from magneto.config import ConfigError
from magneto.files import Damaged, plain, read_object, write_json
from magneto.lab.sweep.cells import SEED, Cell, Sweep
from magneto.lab.sweep.checks import base_of, refuse_edited, refuse_other, refuse_repeated
from magneto.lock import acquire_lock
from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, Recipe
from magneto.training.hooks import Hook
from magneto.training.loop import TrainingResult, train
from magneto.training.metrics_logger import read_metrics
from magneto.training.state import Stop, TrainingState

SPEC_FILE = "sweep.json"
# Seconds between looks at cells that others hold.
WAIT = 1.0
# A cell is looked at, not used: its weights go when it is done, unless asked for.
WEIGHTS = ("checkpoints", "best", "final", "averaged", "candidates", "diverged")


def open_sweep(folder: Path, sweep: Sweep) -> Sweep:
    """Write what the grid is; or find it written, and the same or a part of this one.

    Returns:
        What is written: with the further cells that the folder has.

    Raises:
        ConfigError: If a cell's recipe is wrong, a run is there twice, the recipe was edited, or
            the folder holds another comparison.
    """
    recipes = load_cells(sweep)
    refuse_repeated(sweep, recipes)
    path = folder / SPEC_FILE
    base = base_of(sweep, recipes[0])
    if path.exists():
        held = read_sweep(folder)
        refuse_other(folder, held, sweep)
        refuse_edited(folder, replace(sweep, grid=held.grid, base=held.base))
        base = held.base
        known = [values for values in held.further if values not in sweep.further]
        sweep = replace(sweep, further=[*known, *sweep.further])
    elif folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is there already and not empty")
    folder.mkdir(parents=True, exist_ok=True)
    sweep = replace(sweep, base=base)
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
    path = folder / SPEC_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no comparison in {folder} (there is no {SPEC_FILE})")
    try:
        return Sweep(**read_object(path))
    except TypeError as error:  # other keys
        raise Damaged(f"{path} is damaged: {error}") from error


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


def work(
    folder: Path, device: str | None = None, orphaned: Callable[[], bool] = lambda: False
) -> int:
    """Lock and run cells until all are done, and wait for those that others hold.

    Args:
        folder: Of the sweep.
        device: Overrides where cells run.
        orphaned: Whether the process that started this one is gone; then it stops too.

    Returns:
        How many cells were run here.
    """
    sweep = read_sweep(folder)
    count = 0
    while not orphaned():
        left = [cell for cell in _in_order(sweep) if not is_done(folder, cell)]
        if not left:
            break
        before = count
        for cell in left:
            ended = _try_cell(folder, sweep, cell, device, orphaned)
            if ended is False:
                return count
            count += ended is True
        if count == before:
            time.sleep(WAIT)
    return count


def _try_cell(
    folder: Path, sweep: Sweep, cell: Cell, device: str | None, orphaned: Callable[[], bool]
) -> bool | None:
    """Run a cell unless another has it; return whether it ended by itself, None if not run."""
    lock = None if is_done(folder, cell) else acquire_lock(cell_directory(folder, cell))
    if lock is None:
        return None
    try:
        if is_done(folder, cell):  # by who held the lock a moment ago
            return None
        result = run_cell(folder, sweep, cell, device, orphaned)
        return result.status != "interrupted"
    finally:
        lock.release()


def _in_order(sweep: Sweep) -> Iterator[Cell]:
    """Give first seeds first, so that a table has every cell once before any is repeated."""
    return iter(sorted(sweep.cells(), key=lambda cell: str(cell.values.get(SEED, ""))))


def run_cell(
    folder: Path, sweep: Sweep, cell: Cell, device: str | None, orphaned: Callable[[], bool]
) -> TrainingResult:
    """Run one cell, or go on with it, and write its outcome.

    Raises:
        ConfigError: If the recipe was edited since the comparison began.
    """
    refuse_edited(folder, sweep)
    recipe = sweep.load(cell)
    if device is not None:
        changes = {**sweep.overrides, "training.device": device}
        recipe = replace(sweep, overrides=changes).load(cell)
    run = cell_directory(folder, cell)
    task = recipe.build_task()

    initial: dict[str, float] = {}

    def check(state: TrainingState) -> None:
        if state.detector.first is not None:
            initial["initial_loss"] = state.detector.first
        if orphaned():
            state.stop = Stop("interrupted", "the process that started this one is gone")

    result = train(
        task,
        recipe.training,
        run,
        seed=recipe.seed,
        resume=True,
        hooks=[Hook(recipe.training.log_every, check)],
        report=ProgressBars(quiet=True),
        recipe=recipe.to_mapping(),
        keep_recipe=lambda: recipe.save(run / RUN_FILE),
    )
    if result.status != "interrupted":
        write_json(run / "outcome.json", plain({**outcome(result, run), **initial}))
        if not sweep.keep_weights:
            for name in WEIGHTS:
                shutil.rmtree(run / name, ignore_errors=True)
    return result


def outcome(result: TrainingResult, run: Path) -> dict[str, Any]:
    """Return what a comparison keeps of a run: its end, and its curves of loss."""
    rows = read_metrics(run)
    training, validation = (
        [[row["step"], row[key]] for row in rows if key in row]
        for key in ("loss", "validation_loss")
    )
    return {**asdict(result), "curve": training, "validation_curve": validation}
