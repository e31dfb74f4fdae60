"""The table of images: best points by own validation images, matched points, kept scores."""

import json
import math
from pathlib import Path

import pytest

from magneto.analysis.sweep.cells import Sweep
from magneto.analysis.sweep.sweep import cell_directory, open_sweep
from magneto.cli import main
from magneto.commands.columns import aligned, markdown
from magneto.commands.vision_runs import read_folders, words
from magneto.commands.vision_table import Score, best_scores, matched_scores, table
from magneto.config import ConfigError
from magneto.recipe import load_recipe

PRE, SUB = "Pre-LN, 4 layers", "Sub-LN, 4 layers"


def comparison(
    folder: Path, results: dict[tuple, dict | None], task: str = "image-classification"
) -> Path:
    """Write a comparison's folder; by (placement, rate, seed) the scores by name, the own first."""
    places, rates, seeds = (sorted({key[i] for key in results}, key=str) for i in range(3))
    grid = {"model.placement": places, "training.learning_rate": rates, "seed": seeds}
    sweep = Sweep(f"{task}/tiny", {}, grid)
    open_sweep(folder, sweep)
    for cell in sweep.cells():
        found = results.get(tuple(cell.values.values()))
        if found is None:
            continue
        run = cell_directory(folder, cell)
        (run / "scores").mkdir(parents=True)
        own, *others = found
        metric = {"segmentation": "mean_iou"}.get(task, "accuracy")
        status = "finished" if found[own] is not None else "diverged"
        metrics = {metric: found[own]}
        content = {"status": status, "step": 1, "metrics": metrics, "curve": []}
        (run / "outcome.json").write_text(json.dumps(content))
        for name in others:
            kept = {"metrics": {"accuracy": found[name], "loss": 1.0}}
            (run / "scores" / f"{name}.json").write_text(json.dumps(kept))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    images: dict[tuple, dict | None] = {}
    for seed in (1, 2, 3):
        images["pre", 1e-3, seed] = {"own": 0.80 + seed / 100, "a": 0.40}
        images["pre", 3e-3, seed] = {"own": None if seed == 3 else 0.95}  # one seed diverged
        images["sub", 1e-3, seed] = {"own": 0.84, "a": 0.90}
        images["sub", 3e-3, seed] = {"own": 0.85 + seed / 100, "a": 0.50 + seed / 50, "r": 0.1}
    masks: dict[tuple, dict | None] = {
        (place, 1e-4, 1): {"own": value} for place, value in (("pre", 0.51), ("sub", 0.52))
    }
    return [
        comparison(tmp_path / "images", images),
        comparison(tmp_path / "masks", masks, "segmentation"),
    ]


def test_best_by_own_images_in_all_columns(folders: list[Path]) -> None:
    scores = {(s.row, s.column): s for s in best_scores(read_folders(folders))}
    assert scores[PRE, "digits"].seeds == pytest.approx((81, 82, 83))
    assert scores[PRE, "a"].mean == pytest.approx(40)
    assert dict(scores[SUB, "digits"].point) == {"training.learning_rate": 3e-3}
    # Its best rate is chosen on its own images; at the other one -a would be 90.
    assert scores[SUB, "a"].seeds == pytest.approx((52, 54, 56))
    assert scores[SUB, "a"].interval == pytest.approx(4.3026527 * 2 / math.sqrt(3))
    assert scores[SUB, "scenes"].mean == pytest.approx(52)
    assert math.isnan(scores[SUB, "scenes"].interval)
    assert (PRE, "r") not in scores


def test_matched_rates_are_those_at_which_several_rows_are_whole(folders: list[Path]) -> None:
    found = matched_scores(read_folders(folders))
    assert [words(point) for point in found] == ["learning_rate 0.001", "learning_rate 0.0001"]
    first = next(iter(found.values()))
    assert {(s.row, s.column, round(s.mean)) for s in first} == {
        (PRE, "digits", 82), (PRE, "a", 40), (SUB, "digits", 84), (SUB, "a", 90),
    }  # fmt: skip


def test_the_command(folders: list[Path], capsys) -> None:
    capsys.readouterr()
    assert main(["vision", *map(str, folders)]) == 0
    best, matched, masks = capsys.readouterr().out.strip().split("\n\n")
    assert best.splitlines()[0].split() == [
        "each",
        "row",
        "at",
        "its",
        "best",
        "digits",
        "a",
        "r",
        "scenes",
    ]
    assert f"{PRE}" in best and "82.0 ± 2.5" in best and " -  " in best
    assert matched.startswith("all at learning_rate 0.001") and "0.0001" in masks
    assert main(["vision", *map(str, folders), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {entry["row"] for entry in found["best"]} == {PRE, SUB}
    assert found["best"][0]["point"] == {"training.learning_rate": 0.001}
    assert main(["vision", *map(str, folders), "--markdown"]) == 0
    assert "|---|--:|" in capsys.readouterr().out


def test_points_and_runs_without_a_score_are_said(folders: list[Path], capsys) -> None:
    for seed in (1, 2):
        cell = f"placement=sub,learning_rate=0.003,seed={seed}"
        (folders[0] / "cells" / cell / "outcome.json").unlink()
    capsys.readouterr()
    assert main(["vision", *map(str, folders)]) == 0
    assert capsys.readouterr().out.split("\n\n")[0].splitlines()[3:] == [
        f"{PRE}: digits at learning_rate 0.001; scenes at learning_rate 0.0001",
        f"{SUB}: digits at learning_rate 0.001; scenes at learning_rate 0.0001",
        f"diverged: {PRE} on digits at learning_rate 0.003, seed 3",
        f"no result yet: {SUB} on digits at learning_rate 0.003, seeds 1, 2",
    ]
    assert main(["vision", *map(str, folders), "--markdown"]) == 0
    assert f"\n\n- {PRE}: digits at" in capsys.readouterr().out
    assert main(["vision", *map(str, folders), "--json"]) == 0
    missing = json.loads(capsys.readouterr().out)["without_score"]
    assert [(m["why"], m["seed"]) for m in missing] == [
        ("diverged", 3), ("no result yet", 1), ("no result yet", 2),
    ]  # fmt: skip


def test_a_result_that_is_none_is_one_line(folders: list[Path], capsys) -> None:
    outcome = next(folders[0].glob("cells/*seed=1/outcome.json"))
    capsys.readouterr()
    for given, message in (
        ({}, "it has no metrics"),
        ({"metrics": [1]}, "it has no metrics"),
        ({"metrics": {"accuracy": True}}, "its accuracy is True"),
    ):
        outcome.write_text(json.dumps({"status": "finished", "step": 10, **given}))
        assert main(["vision", *map(str, folders)]) == 2
        assert capsys.readouterr().err == f"magneto: {outcome} is damaged: {message}\n"


def test_a_run_of_its_own_is_a_row(tmp_path: Path, folders: list[Path]) -> None:
    recipe = load_recipe("image-classification/tiny", {"model.placement": "post"})
    (tmp_path / "run").mkdir()
    recipe.save(tmp_path / "run" / "recipe.yaml")
    ended = {"status": "finished", "metrics": {"accuracy": 0.7}}
    (tmp_path / "run" / "result.json").write_text(json.dumps(ended))
    scores = best_scores(read_folders([*folders, tmp_path / "run"]))
    assert ("Post-LN, 4 layers", 70.0) in [(s.row, s.mean) for s in scores]
    with pytest.raises(ConfigError, match="both have Post-LN, 4 layers on digits at learning_rate"):
        read_folders([tmp_path / "run", tmp_path / "run"])


def test_all_columns_are_of_the_best_weights(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "scores").mkdir(parents=True)
    load_recipe("image-classification/tiny").save(run / "recipe.yaml")
    ended = {"status": "finished", "metrics": {"accuracy": 0.7}, "best": {"step": 2, "value": 0.8}}
    (run / "result.json").write_text(json.dumps(ended))
    kept = {"metrics": {"accuracy": 0.5}, "weights": "best", "limit": None}
    (run / "scores" / "a.json").write_text(json.dumps(kept))
    assert [(s.column, s.mean) for s in best_scores(read_folders([run]))] == [
        ("digits", 80), ("a", 50),
    ]  # fmt: skip
    for change, message in (({"weights": "final"}, "final, not best"), ({"limit": 2}, "2 batches")):
        (run / "scores" / "a.json").write_text(json.dumps(kept | change))
        with pytest.raises(ConfigError, match=message):
            read_folders([run])


def test_what_is_refused(tmp_path: Path, folders: list[Path]) -> None:
    with pytest.raises(FileNotFoundError):
        read_folders([tmp_path / "nothing"])
    recipe = load_recipe("masked-lm/tiny")
    (tmp_path / "words").mkdir()
    recipe.save(tmp_path / "words" / "recipe.yaml")
    with pytest.raises(ConfigError, match="its task is masked-lm"):
        read_folders([tmp_path / "words"])


def test_sources_that_end_alike_are_apart(tmp_path: Path) -> None:
    ended = {"status": "finished", "metrics": {"accuracy": 0.7}}
    for name, digest in (("a", "x"), ("b", "y"), ("c", "x")):
        run = tmp_path / name
        run.mkdir()
        changes = {
            "data.source": f"{name}/photos",
            "model.placement": {"a": "pre"}.get(name, "sub"),
        }
        load_recipe("image-classification/tiny", changes).save(run / "recipe.yaml")
        (run / "result.json").write_text(json.dumps(ended))
        (run / "data.digest").write_text(digest)
    found = read_folders([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert [run.own for run in found] == ["a/photos", "b/photos", "a/photos"]
    assert [run.own for run in read_folders([tmp_path / "b"])] == ["photos"]


def test_words_in_columns() -> None:
    lines = table("a", [], ["b", "ccc"])
    assert lines == [["a"], ["b"], ["ccc"]]
    scores = [Score("b", "x", seeds, ()) for seeds in ((70.0, 70.5), (70.04, 70.06), (70.046,))]
    written = [table("a", [score], ["b"], 2)[1][1] for score in scores]
    assert written == ["70.2 ± 3.2", "70.05 ± 0.13", "70.05"]
    assert aligned([["a", "x"], ["bcd", "yz"]]) == "a     x\nbcd  yz"
    assert markdown([["a", "x"], ["b", "y"]]).splitlines()[1] == "|---|--:|"
