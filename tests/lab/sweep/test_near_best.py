"""More seeds near each row's best rate, on outcomes that are known."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.lab.sweep.cells import RATE, SEED, Cell, Sweep
from magneto.lab.sweep.near_best import around, with_more_seeds
from magneto.lab.sweep.summary import everywhere, sensitivity
from magneto.lab.sweep.sweep import cell_directory, open_sweep, read_sweep
from tests.lab.sweep.test_compare import cells

GRID = {"model.placement": ["pre", "sub"], RATE: [1e-3, 1e-2, 1e-1, 1.0], SEED: [1]}
SWEEP = Sweep("image-classification/tiny", {}, GRID)
# Accuracies of digits; the commonest class has about 0.1.
TABLE = {"pre": [0.5, 0.9, 0.6, None], "sub": [0.6, 0.5, 0.4, 0.8]}


def write(folder: Path, cell: Cell, accuracy: float | None) -> None:
    directory = cell_directory(folder, cell)
    directory.mkdir(parents=True)
    status = "diverged" if accuracy is None else "finished"
    outcome = {
        "status": status, "reason": "", "metrics": {"accuracy": accuracy, "loss": 1.0},
        "curve": [[1, 2.3], [2, 1.0]], "diverged_at": None, "seconds": 1.0, "step": 2,
        "initial_loss": 2.3,
    }  # fmt: skip
    (directory / "outcome.json").write_text(json.dumps(outcome))


def fill(folder: Path, sweep: Sweep) -> None:
    for cell in sweep.cells():
        if not cell_directory(folder, cell).exists():
            row = TABLE[str(cell.values["model.placement"])]
            write(folder, cell, row[GRID[RATE].index(cell.values[RATE])])


def test_the_best_rate_and_its_neighbours_get_the_seeds(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    fill(tmp_path, SWEEP)
    grown = with_more_seeds(tmp_path, SWEEP, [1, 2, 3])
    found = {(v["model.placement"], v[RATE], v[SEED]) for v in grown.further}
    pre = {("pre", rate, seed) for rate in (1e-3, 1e-2, 1e-1) for seed in (2, 3)}
    assert found == pre | {("sub", rate, seed) for rate in (1e-1, 1.0) for seed in (2, 3)}
    assert len(grown.cells()) == 8 + 10
    fill(tmp_path, grown)
    assert with_more_seeds(tmp_path, grown, [1, 2, 3]) == grown


def test_a_row_that_did_not_learn_gets_none() -> None:
    assert around(SWEEP, "pre", None, [2]) == []


def test_the_folder_keeps_further_cells(tmp_path: Path) -> None:
    grown = replace(SWEEP, further=around(SWEEP, "pre", 1e-3, [2]))
    open_sweep(tmp_path / "out", grown)
    assert open_sweep(tmp_path / "out", SWEEP) == grown == read_sweep(tmp_path / "out")
    wider = replace(SWEEP, grid={**GRID, SEED: [1, 2]})
    assert len(open_sweep(tmp_path / "out", wider).cells()) == 16  # none twice


def test_a_seed_of_a_part_of_the_rates_does_not_change_the_sensitivity() -> None:
    whole = cells("pre", {1e-3: [4.0], 1e-2: [3.9], 1e-1: [None]})
    more = [replace(cell, seed=9, score=0.5, loss=0.5) for cell in whole[:2]]
    every = [*whole, *more]
    assert everywhere(every) == everywhere(whole) == [0]
    assert sensitivity(every, everywhere(every)) == sensitivity(whole, [0])


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    words = ["compare", "image-classification/tiny", "--placements", "pre,sub", "--lrs",
             "1e-3,3e-3,1e-2", "--more-seeds", "2,3", "--jobs", "1", "--no-measurements",
             "--training.steps", "8", "--training.evaluate_every", "0",
             "--out", str(tmp_path / "out")]  # fmt: skip
    assert main(words) == 0
    comparison = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert comparison["seeds"] == [1] and comparison["seeds_near_best"] == [2, 3]
    assert all(len(row["scores"]) == 3 for row in comparison["summary"])
    assert "at each row's best learning rate" in (tmp_path / "out" / "report.md").read_text()
