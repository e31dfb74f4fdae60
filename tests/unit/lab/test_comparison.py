"""Comparisons: baselines, additional seeds, measurements, and environments."""

from dataclasses import replace
from pathlib import Path

import pytest

from magneto.files import write_json
from magneto.lab import comparison
from magneto.lab.comparison import collect, environments, measure, with_more_seeds, without_places
from magneto.lab.grid import (
    PLACEMENT,
    RATE,
    SEED,
    Cell,
    Sweep,
    cell_directory,
    open_sweep,
    read_sweep,
)
from magneto.lab.update import measure_growth, measured_shape
from magneto.recipe import recipe_path

GRID = {"model.placement": ["post", "pre", "sub"], RATE: [1e-3, 1e-2, 1e-1, 1.0], SEED: [1]}
SWEEP = Sweep("image-classification/tiny", {}, GRID)
# Accuracies of digits; the commonest class has about 0.1.
TABLE = {"post": [None] * 4, "pre": [0.5, 0.9, 0.6, None], "sub": [0.6, 0.5, 0.4, 0.8]}


def write(folder: Path, cell: Cell, accuracy: float | None) -> None:
    write_json(cell_directory(folder, cell) / "outcome.json", {
        "status": "diverged" if accuracy is None else "finished", "reason": "",
        "metrics": {"accuracy": accuracy, "loss": 1.0}, "curve": [[1, 2.3], [2, 1.0]],
        "diverged_at": None, "seconds": 1.0, "step": 2, "initial_loss": 2.3,
    })  # fmt: skip


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
    assert len(grown.cells()) == 12 + 10
    fill(tmp_path, grown)
    assert with_more_seeds(tmp_path, grown, [1, 2, 3]) == grown
    found = collect(tmp_path, grown, "magneto compare")
    assert (found["seeds"], found["seeds_near_best"], len(found["cells"])) == ([1], [2, 3], 22)
    assert found["summary"][2]["best_learning_rate"] == 1.0 and found["metric"] == "accuracy"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(recipe_path("image-classification/tiny").read_text())
    changes = {"model.pretrained": f"{tmp_path}/run", "training.evaluate_limit": 1}
    placed, whole = replace(grown, recipe=str(recipe), overrides=changes), found["baseline"]
    found = collect(tmp_path, placed, f"magneto compare {recipe}")
    assert found["baseline"] != whole, "that of the batches that are scored"
    assert found["config"]["model"]["pretrained"] == "run" and str(tmp_path) not in str(found)
    open_sweep(tmp_path / "out", grown)
    assert open_sweep(tmp_path / "out", SWEEP) == grown == read_sweep(tmp_path / "out")
    wider = replace(SWEEP, grid={**GRID, SEED: [1, 2, 3]})
    assert len(open_sweep(tmp_path / "out", wider).cells()) == 36, "none twice"


SMALL = {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.ffn_width": 32}


def sweep(*placements: str) -> Sweep:
    grid = {PLACEMENT: list(placements), RATE: [1e-3, 1e-2], SEED: [1, 2]}
    return Sweep("image-classification/tiny", SMALL | {"training.batch_size": 8}, grid)


def test_each_placement_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "DEPTHS", (2, 4))
    monkeypatch.setattr(comparison, "SEEDS", (0, 1))
    found = measure(tmp_path, sweep("post", "sub"), ["post"])
    assert found["width"] == 16 and found["depths"] == [2, 4]
    assert {name: len(layers) for name, layers in found["activations"].items()} == {
        "post": 2, "sub": 2,
    }  # fmt: skip
    # A norm after every sum leaves an RMS of 1; without one, it grows.
    post, sub = (list(found["activations"][name].values()) for name in ("post", "sub"))
    assert post == pytest.approx([1, 1], abs=0.01) and sub[1] > sub[0] > 0
    assert len(found["updates"]) == 2 * 2 * 2 * 4
    grid = sweep("post", "sub")
    shape, plan = measured_shape(grid.load(grid.cells()[0]).model), {"stack": "encoder"}
    known = measure_growth(shape, depths=(2, 4), seeds=(0, 1), samples=comparison.SAMPLES, **plan)
    own = [update["value"] for update in found["updates"] if update["placement"] == "post"]
    assert own == pytest.approx([update.value for update in known])
    assert {part["placement"] for part in found["growth"]} == {"post", "sub"}

    assert list(found["reasons"]) == ["post"], "only what failed is probed"
    monkeypatch.setattr(comparison, "measure_recipes", None)
    monkeypatch.setattr(comparison, "diagnose", None)
    assert measure(tmp_path, sweep("post", "sub"), ["post"]) == found
    assert measure(tmp_path, sweep("post", "sub"), [])["reasons"] == {}, "it has learned since"
    grown = sweep("post", "sub")
    grown.grid[RATE].insert(0, 1e-4)
    with pytest.raises(TypeError):
        measure(tmp_path, grown, ["post"])  # is probed at its smallest rate
    with pytest.raises(TypeError):
        measure(tmp_path, sweep("post", "pre"), [])  # another grid's are not taken for its own


def test_environments_of_runs_are_told_together(tmp_path: Path) -> None:
    first = {
        "command": ["/home/me/magneto", "train"], "python": "3.12.1", "platform": "Linux-box",
        "packages": {"torch": "2.13.0", "numpy": None}, "processor": "A", "cores": 8, "gpus": [],
        "commit": "abc",
    }  # fmt: skip
    second = first | {"commit": "def", "gpus": ["H200", "H200"]}
    for name, records in (("a", [first, first]), ("b", [second])):
        write_json(tmp_path / name / "environment.json", records)
    assert environments([tmp_path / name for name in ("a", "b", "none")]) == {
        "python": ["3.12.1"], "torch": ["2.13.0"], "processor": ["A"], "cores": ["8"],
        "commit": ["abc", "def"], "gpus": ["2 x H200"],
    }  # fmt: skip


def test_places_are_not_told() -> None:
    for text, expected in (
        ("magneto compare x --out /home/me/a --lrs 1", "magneto compare x --out a --lrs 1"),
        ("--data ~/text.txt", "--data text.txt"),
        ("'/home/me/a.txt','/b'", "'a.txt','b'"),
        ("runs/x", "runs/x"),
        ("hf:owner/name", "hf:owner/name"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ):
        assert without_places({"a": [text, 3]}) == {"a": [expected, 3]}
