"""Grids: cells are the product of the values, and ambiguous grids are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.lab.grid import PLACEMENT, RATE, SEED, Cell, Sweep, open_sweep, read_sweep
from magneto.lab.outcome import title_of
from magneto.lab.sweep import run_cell
from magneto.recipe import Recipe
from magneto.training.checkpoint import STATE

GRID = {PLACEMENT: ["pre", "sub"], RATE: [1e-3], SEED: [1]}


def test_one_run_twice_is_no_second_seed(tmp_path: Path) -> None:
    for fields, answer in (
        ({RATE: [1e-3, 1e-3]}, "are the same run"),
        ({"model.pretrained": ["a/b", "a_b"]}, "have the same directory, pretrained=a_b"),
        ({"model.layers": ["6", "06"]}, "are the same run"),
    ):
        more = {key: values for key, values in GRID.items() if key not in fields}
        recipe = f"{'text-classification' if 'model.pretrained' in fields else 'causal-lm'}/tiny"
        with pytest.raises(ConfigError) as refused:
            open_sweep(tmp_path / "grid", Sweep(recipe, {}, {**fields, **more}))
        assert len(refused.value.lines) == 1 and answer in refused.value.lines[0]
        assert not (tmp_path / "grid").exists()


def test_rows_are_scored_on_the_same_data(tmp_path: Path) -> None:
    for field, values in (
        ("data.max_length", ["64", "128"]), ("data.tokenizer", ["bytes", "bpe"]),
        ("training.evaluate_limit", ["1", "2"]),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"{field}: scores on different data"):
            open_sweep(tmp_path / "grid", Sweep("causal-lm/tiny", {}, {field: values, **GRID}))
    flips = {"data.augmentation.flip": ["0", "0.5"], **GRID}  # of training alone
    open_sweep(tmp_path / "flips", Sweep("image-classification/tiny", {}, flips))


def test_fields_of_one_last_part_are_two_fields(tmp_path: Path) -> None:
    """Cells of model.max_length and of data.max_length have the same names."""
    grids = [{f"{section}.max_length": ["64"], **GRID} for section in ("model", "data")]
    first, other = (Sweep("causal-lm/tiny", {}, grid) for grid in grids)
    assert {cell.name for cell in first.cells()} == {cell.name for cell in other.cells()}
    open_sweep(tmp_path, replace(first, overrides={"data.max_length": 64}))
    with pytest.raises(ConfigError, match="another comparison"):
        open_sweep(tmp_path, replace(other, overrides={"data.max_length": 64}))


def test_an_edited_recipe_is_not_mixed_in(small: Callable[..., Recipe], tmp_path: Path) -> None:
    """Neither by a grid that is begun again, nor by one that runs, nor by a cell that goes on."""

    def mine(**changes: object) -> Sweep:
        small(training__save_every=2, **changes).save(tmp_path / "mine.yaml")
        return Sweep(str(tmp_path / "mine.yaml"), {}, {**GRID, PLACEMENT: ["pre"]})

    grid, larger = tmp_path / "grid", {PLACEMENT: ["sub", "pre"], RATE: [1e-3, 1e-2], SEED: [1]}
    open_sweep(grid, mine())
    edited = replace(mine(training__steps=60, training__num_workers=1), grid=larger)
    with pytest.raises(ConfigError, match=r"training\.steps is 60 \(was 8\); undo") as refused:
        open_sweep(grid, edited)
    assert len(refused.value.lines) == 1
    held = read_sweep(grid)
    cell = held.cells()[0]
    with pytest.raises(ConfigError, match=r"training\.steps is 60"):
        run_cell(grid, held, cell, None, lambda: False)
    assert not (grid / "cells").exists()
    sweep = replace(mine(training__num_workers=1), grid=larger)
    open_sweep(grid, sweep)
    assert run_cell(grid, sweep, cell, None, lambda: True).status == "interrupted"
    run = grid / "cells" / cell.name
    kept, state = (run / "recipe.yaml").read_text(), next(run.glob(f"checkpoints/*/{STATE}"))
    assert json.loads(state.read_text())["recipe"]["model"]["layers"] == 2
    mine(model__dropout=0.3)
    with pytest.raises(ValueError, match=r"model\.dropout is 0\.3"):
        run_cell(grid, sweep, cell, None, lambda: False)
    assert (run / "recipe.yaml").read_text() == kept


def digits(**changes: object) -> Sweep:
    return Sweep("image-classification/tiny", changes, {**GRID, RATE: [1e-3, 1e-2]})


def test_a_grid_may_grow_and_no_other_one_takes_its_folder(tmp_path: Path) -> None:
    open_sweep(tmp_path, digits())
    larger = replace(digits(), grid={**GRID, RATE: [1e-3, 3e-3, 1e-2]})
    open_sweep(tmp_path, larger)
    assert read_sweep(tmp_path) == larger
    with pytest.raises(ConfigError, match="another comparison"):
        open_sweep(tmp_path, digits(**{"training.steps": 13}))
    with pytest.raises(ConfigError, match=r"did you mean model\.heads"):
        open_sweep(tmp_path / "new", digits(**{"model.hedas": 3}))
    with pytest.raises(ConfigError, match="only values of the grid may be added"):
        open_sweep(tmp_path, replace(larger, grid={**GRID, SEED: [2]}))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(FileExistsError):
        open_sweep(tmp_path / "other", digits())


def test_further_fields_are_rows_of_their_own() -> None:
    """Cells of 6 and of 24 layers belong to different rows."""
    wide = replace(digits(), grid={"model.layers": ["6", "24"], **GRID})
    assert len(wide.cells()) == 4 and wide.load(wide.cells()[-1]).model.layers == 24
    rows = {cell.row for cell in wide.cells()}
    assert rows == {f"{name},layers={n}" for name in ("pre", "sub") for n in (6, 24)}
    assert "/" not in Cell({"data.source": "a/b"}).name
    assert title_of("sub,layers=6") == "Sub-LN, layers=6" and title_of("sub") == "Sub-LN"
    assert Cell({"training.learning_rate": 1e-3, "seed": 1}).row == "Recipe"
