"""`magneto table`: best points, shared points, scores on other data, presets."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from magneto.commands.table import (
    ANY,
    NUMBERS,
    PRESETS,
    Score,
    averages,
    best_scores,
    shared_scores,
    table,
)
from magneto.config import ConfigError
from magneto.lab.grid import Sweep, cell_directory, open_sweep
from magneto.lab.scores import name_of, read_runs, row_of, words
from magneto.recipe import load_recipe
from tests.commands import answer, printed, refused

IMAGES, QUESTIONS, GLUE = (PRESETS[name] for name in ("images", "vision-language", "glue"))
PRE, SUB = "Pre-LN, 4 layers", "Sub-LN, 4 layers"


def comparison(folder: Path, recipe: str, results: Mapping[tuple, dict | None], **changes) -> Path:
    """Write a comparison's folder with invented outcomes.

    Args:
        folder: Where.
        recipe: Its name.
        results: Metrics by (placement, rate, seed): {} diverged, None has no result; under "kept",
            scores on other data by name.
        changes: Fields of all cells.
    """
    places, rates, seeds = (sorted({key[i] for key in results}, key=str) for i in range(3))
    grid = {"model.placement": places, "training.learning_rate": rates, "seed": seeds}
    sweep = Sweep(recipe, changes, grid)
    open_sweep(folder, sweep)
    for cell in sweep.cells():
        metrics = results.get(tuple(cell.values.values()))
        if metrics is None:
            continue
        metrics = dict(metrics)
        run, kept = cell_directory(folder, cell), metrics.pop("kept", {})
        (run / "scores").mkdir(parents=True)
        status = "finished" if metrics else "diverged"
        content = {"status": status, "step": 1, "metrics": metrics, "curve": []}
        (run / "outcome.json").write_text(json.dumps(content))
        for name, value in kept.items():
            score = {"metrics": {"accuracy": value, "loss": 1.0}}
            (run / "scores" / f"{name}.json").write_text(json.dumps(score))
    return folder


def run(folder: Path, result: dict, **changes) -> Path:
    """Write a single run with an invented result."""
    (folder / "scores").mkdir(parents=True)
    load_recipe("image-classification/tiny", changes).save(folder / "recipe.yaml")
    (folder / "result.json").write_text(json.dumps({"status": "finished", **result}))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    images: dict[tuple, dict | None] = {}
    for seed in (1, 2, 3):
        images["pre", 1e-3, seed] = {"accuracy": 0.80 + seed / 100, "kept": {"a": 0.40}}
        images["pre", 3e-3, seed] = {} if seed == 3 else {"accuracy": 0.95}  # one seed diverged
        images["sub", 1e-3, seed] = {"accuracy": 0.84, "kept": {"a": 0.90}}
        kept = {"a": 0.50 + seed / 50, "r": 0.1}
        images["sub", 3e-3, seed] = {"accuracy": 0.85 + seed / 100, "kept": kept}
    masks: dict[tuple, dict | None] = {
        (place, 1e-4, 1): {"mean_iou": value} for place, value in (("pre", 0.51), ("sub", 0.52))
    }
    return [
        comparison(tmp_path / "images", "image-classification/tiny", images),
        comparison(tmp_path / "masks", "segmentation/tiny", masks),
    ]


def test_best_by_own_data_in_all_columns(folders: list[Path], tmp_path: Path) -> None:
    """Also the scores at points that several rows share."""
    runs = read_runs(folders, IMAGES)
    scores = {(s.row, s.column): s for s in best_scores(runs)}
    assert scores[PRE, "digits"].seeds == pytest.approx((81, 82, 83))
    assert scores[PRE, "a"].mean == pytest.approx(40)
    assert dict(scores[SUB, "digits"].point) == {"training.learning_rate": 3e-3}
    # Its best rate is chosen on its own images; at the other one -a would be 90.
    assert scores[SUB, "a"].seeds == pytest.approx((52, 54, 56))
    assert scores[SUB, "a"].interval == pytest.approx(4.3026527 * 2 / math.sqrt(3))
    assert scores[SUB, "scenes"].mean == pytest.approx(52)
    assert math.isnan(scores[SUB, "scenes"].interval) and (PRE, "r") not in scores
    shared = shared_scores(runs)
    assert [words(point) for point in shared] == ["learning_rate 0.001", "learning_rate 0.0001"]
    assert {(s.row, s.column, round(s.mean)) for s in next(iter(shared.values()))} == {
        (PRE, "digits", 82), (PRE, "a", 40), (SUB, "digits", 84), (SUB, "a", 90),
    }  # fmt: skip
    losses = {("pre", rate, 1): {"loss": loss} for rate, loss in ((1e-3, 3.0), (2e-3, 2.5))}
    folder = comparison(tmp_path / "lm", "causal-lm/tiny", losses)
    [score] = best_scores(read_runs([folder], ANY))  # where lower is better
    assert score.seeds == (2.5,) and score.column.endswith(" loss")


def test_the_command(folders: list[Path], capsys: pytest.CaptureFixture) -> None:
    given = ["table", *folders]
    best, shared, masks = printed(capsys, *given, "--preset", "images").strip().split("\n\n")
    assert best.splitlines()[0].split()[5:] == ["digits", "a", "r", "scenes"]
    assert PRE in best and "82.0 ± 2.5" in best and " -  " in best
    assert shared.startswith("all rows at learning_rate 0.001") and "0.0001" in masks
    found = answer(capsys, *given, "--preset", "images")
    assert {entry["row"] for entry in found["best"]} == {PRE, SUB}
    assert found["best"][0]["point"] == {"training.learning_rate": 0.001}
    out = printed(capsys, *given)  # of any task: metrics as they are, by name
    assert "digits accuracy" in out and "0.8200 ± 0.0248" in out
    assert "needs --preset librispeech" in refused(capsys, *given, "--preset", "glue", "--paper")


def test_points_and_runs_without_a_score_are_said(folders: list[Path], capsys) -> None:
    for seed in (1, 2):
        cell = f"placement=sub,learning_rate=0.003,seed={seed}"
        (folders[0] / "cells" / cell / "outcome.json").unlink()
    given = ["table", *folders, "--preset", "images"]
    assert printed(capsys, *given).split("\n\n")[0].splitlines()[3:] == [
        f"{PRE}: digits at learning_rate 0.001; scenes at learning_rate 0.0001",
        f"{SUB}: digits at learning_rate 0.001; scenes at learning_rate 0.0001",
        f"diverged: {PRE} on digits at learning_rate 0.003, seed 3",
        f"no result yet: {SUB} on digits at learning_rate 0.003, seeds 1, 2",
    ]
    missing = answer(capsys, *given)["without_score"]
    assert [(m["reason"], m["seed"]) for m in missing] == [
        ("diverged", 3), ("no result yet", 1), ("no result yet", 2),
    ]  # fmt: skip
    # What is there and is no result is one line.
    outcome = next(folders[0].glob("cells/*seed=1/outcome.json"))
    for content in ({}, {"metrics": [1]}, {"metrics": {"accuracy": True}}):
        outcome.write_text(json.dumps({"status": "finished", "step": 10, **content}))
        assert f"{outcome} is damaged: " in refused(capsys, "table", *folders)


def test_a_run_of_its_own_is_a_row_and_runs_of_one_row_are_its_seeds(
    tmp_path: Path, folders: list[Path]
) -> None:
    post = {"model.placement": "post"}
    first = run(tmp_path / "run", {"metrics": {"accuracy": 0.7}}, **post)
    scores = best_scores(read_runs([*folders, first], IMAGES))
    assert ("Post-LN, 4 layers", 70.0) in [(s.row, s.mean) for s in scores]
    with pytest.raises(ConfigError, match="are the same run: Post-LN, 4 layers on digits at"):
        read_runs([first, first], IMAGES)
    second = run(tmp_path / "2", {"metrics": {"accuracy": 0.8}}, **post, seed=7)
    [score] = best_scores(read_runs([first, second], IMAGES))
    assert score.seeds == pytest.approx((70, 80))
    for change, message in (
        ({"model.width": 24}, "model.width is"),
        ({"training.steps": 9}, "steps"),
        ({"training.epochs": 9}, "epochs"),
        ({"training.weight_decay": 0.5, "seed": 1}, "weight_decay"),
        ({"training.batch_size": 9}, "batch_size"),
        ({"training.ema_decay": 0.5}, "ema_decay"),
    ):
        changes = {**post, "seed": 8, **change}
        other = run(tmp_path / message, {"metrics": {"accuracy": 0.8}}, **changes)
        with pytest.raises(ConfigError, match=f"share a row .* differ in more than .*{message}"):
            read_runs([first, other], IMAGES)


def test_all_columns_are_of_the_weights_that_are_asked_for(tmp_path: Path, capsys) -> None:
    """The best, unless --weights names others."""
    result = {"metrics": {"accuracy": 0.7}, "best": {"step": 2, "value": 0.8}}
    folder = run(tmp_path / "run", result)
    kept = {"metrics": {"accuracy": 0.5, "accuracy_half_width": 0.02}, "weights": "best",
            "limit": None}  # fmt: skip
    (folder / "scores" / "a.json").write_text(json.dumps(kept))
    assert [(s.column, s.mean) for s in best_scores(read_runs([folder], IMAGES))] == [
        ("digits", 80), ("a", 50),
    ]  # fmt: skip
    [measured] = read_runs([folder], IMAGES)
    assert measured.other_scores["a"].half_width == pytest.approx(2), "in percent as the score"
    for change, message in (({"weights": "final"}, "final, not best"), ({"limit": 2}, "2 batches")):
        (folder / "scores" / "a.json").write_text(json.dumps(kept | change))
        with pytest.raises(ConfigError, match=message):
            read_runs([folder], IMAGES)
    for name in ("final", "averaged"):
        (folder / "scores" / "a.json").write_text(json.dumps(kept | {"weights": name}))
        found = answer(capsys, "table", folder, "--preset", "images", "--weights", name)
        assert [(s["column"], s["mean"]) for s in found["best"]] == [("digits", 80), ("a", 50)]
        assert f"weights {name}, not best" in refused(capsys, "table", folder)
    weights = folder / "best" / "manifest.json"
    weights.parent.mkdir(exist_ok=True)
    weights.write_text('{"model.safetensors": {"bytes": 8, "crc32": 1}}')
    known = {"manifest": json.loads(weights.read_text())}
    (folder / "scores" / "a.json").write_text(json.dumps(kept | known))
    assert len(best_scores(read_runs([folder], IMAGES))) == 2
    weights.write_text('{"model.safetensors": {"bytes": 8, "crc32": 2}}')
    with pytest.raises(ConfigError, match=r"weights in .*best have changed since the score in"):
        read_runs([folder], IMAGES)


def test_other_tasks_are_refused(tmp_path: Path, folders: list[Path]) -> None:
    with pytest.raises(FileNotFoundError):
        read_runs([tmp_path / "nothing"], IMAGES)
    with pytest.raises(ConfigError, match="image-classification, not visual-question-answering or"):
        read_runs(folders, QUESTIONS)
    results: dict[tuple, dict | None] = {("sub", 1e-4, 1): {"accuracy": 0.8}}
    own = comparison(tmp_path / "own", "text-classification/small", results)
    with pytest.raises(ConfigError, match=r"is not a column of the table .mnli accuracy"):
        read_runs([own], GLUE)


def test_sources_that_end_alike_are_apart(tmp_path: Path) -> None:
    for name in "ab":
        run(tmp_path / name, {"metrics": {"accuracy": 0.7}}, **{"data.source": f"{name}/photos"})
        for kept in ("x", "photos"):
            path = tmp_path / name / "scores" / f"{kept}.json"
            path.write_text('{"metrics": {"accuracy": 0.5}}')
    found = read_runs([tmp_path / "a", tmp_path / "b"], IMAGES)
    assert [each.own for each in found] == ["a/photos", "b/photos"]
    assert [[*each.other_scores] for each in found] == [
        [f"{name}/photos: {column}" for column in ("photos", "x")] for name in "ab"
    ], "models of different data share no column"
    [alone] = read_runs([tmp_path / "b"], IMAGES)
    assert (alone.own, [*alone.other_scores]) == ("photos", ["photos: photos", "x"])
    pair = load_recipe("translation/tiny", {"model.encoder_layers": 3, "model.decoder_layers": 2})
    assert row_of(pair, False) == "Sub-LN, 3+2 layers"
    assert name_of("hf:ILSVRC/imagenet-1k") == "imagenet-1k"


def test_both_tasks_and_what_the_leaderboard_gave(tmp_path: Path, capsys) -> None:
    """What it did not give is refused."""
    vqa: dict[tuple, dict | None] = {}
    nlvr: dict[tuple, dict | None] = {}
    for place, better in (("pre", 0.0), ("sub", 0.01)):
        for seed in (1, 2):
            vqa[place, 1e-5, seed] = {"accuracy": 0.70 + better}
            nlvr[place, 1e-5, seed] = {"accuracy": 0.80 + better, "kept": {"test-P": 0.81 + better}}
    answered = [comparison(tmp_path / "vqa", "visual-question-answering/tiny", vqa),
                comparison(tmp_path / "nlvr", "visual-reasoning/tiny", nlvr)]  # fmt: skip
    for folder in (tmp_path / "vqa").glob("cells/*/scores"):
        given = [{"test-dev": {"yes/no": 85.0, "number": 50.0, "other": 60.0, "overall": 71.5}},
                 {"test-standard": {"overall": 71.25}}]  # fmt: skip
        (folder / "leaderboard.json").write_text(json.dumps(given))
    out = printed(capsys, "table", *answered, "--preset", "vision-language")
    head, *rows = out.split("\n\n")[0].splitlines()
    columns = ["VQA, shapes", "test-dev", "test-standard", "NLVR, shapes", "test-P"]
    assert re.split("  +", head) == ["best settings of each row", *columns]
    cells = [re.split("  +", row) for row in rows[:2]]
    assert [row[0] for row in cells] == [PRE, SUB]
    numbers = [cell.split(" ")[0] for cell in cells[1][1:]]
    assert numbers == ["71.00", "71.50", "71.25", "81.00", "82.00"]
    scores = next(answered[0].glob("cells/*/scores"))
    (scores / "test-dev.json").write_text('{"metrics": {"accuracy": 0.5}}')
    with pytest.raises(ConfigError, match=r"leaderboard\.json and .*-dev\.json both have a score"):
        read_runs(answered, QUESTIONS)
    for given in ("[7]", '[{"test-dev": {"overall": 71}}, {"test-dev": {"overall": 72}}]'):
        (scores / "leaderboard.json").write_text(given)
        with pytest.raises(ConfigError, match=r"leaderboard\.json is neither an output"):
            read_runs(answered, QUESTIONS)


def test_rows_of_glue_are_placements_and_origins(tmp_path: Path) -> None:
    """Both sets of MNLI show the same grid point, the best one on the first set."""
    results: dict[tuple, dict | None] = {
        ("post", 1e-4, 1): {"accuracy": 0.7, "accuracy_mismatched": 0.5},
        ("post", 3e-4, 1): {"accuracy": 0.6, "accuracy_mismatched": 0.9},
    }
    origin = {"data.glue": "mnli", "model.pretrained": "runs/mlm-{placement}"}
    folder = comparison(tmp_path / "mnli", "text-classification/small", results, **origin)
    scores = best_scores(read_runs([folder], GLUE))
    assert [(s.row, s.column, s.mean) for s in scores] == [
        ("Post-LN, from runs/mlm-post", "mnli accuracy", pytest.approx(70)),
        ("Post-LN, from runs/mlm-post", "mnli accuracy_mismatched", pytest.approx(50)),
    ]
    results = {("sub", 1e-4, 1): {"matthews": 0.2, "accuracy": 0.99}}
    task = {"data.glue": "cola"}
    folder = comparison(tmp_path / "cola", "text-classification/small", results, **task)
    [score] = best_scores(read_runs([folder], GLUE))
    assert (score.row, score.column) == ("Sub-LN, from scratch", "cola matthews")


def test_the_average_is_that_of_the_paper_or_over_what_every_row_has() -> None:
    """The paper's Sub-LN row has eight numbers, with both sets of MNLI and without RTE."""
    numbers = dict(zip(NUMBERS, (86.7, 86.7, 92.4, 91.2, 93.9, 62.9, 87.2, 89.2), strict=True))
    scores = [Score("Sub-LN", name, (v,)) for name, v in {**numbers, "rte accuracy": 1.0}.items()]
    [average] = averages(scores, NUMBERS)
    assert round(average.mean, 1) == 86.3
    lines = table("", [average, *reversed(scores)], [], GLUE)
    assert lines[0] == ["", *NUMBERS, "rte accuracy", "average of 8"] and lines[1][-1] == "86.3"
    scores = [
        Score("a", "cola matthews", (10.0, 20.0)),
        Score("a", "mrpc accuracy", (60.0, 70.0)),
        Score("b", "mrpc accuracy", (80.0,)),
    ]
    written = [table("a", [Score("b", "x", seeds)], ["b"], QUESTIONS)[1][1]
               for seeds in ((70.0, 70.5), (70.04, 70.06), (70.046,))]  # fmt: skip
    assert written == ["70.2 ± 3.2", "70.05 ± 0.13", "70.05"]
    lines = table("", scores + averages(scores, NUMBERS), ["a", "b"], GLUE)
    assert lines[0][-1] == "average of 1" and lines[2][1:] == ["-", "80.0", "80.0"]
    assert lines[1][1:] == ["15.0 ± 63.5", "65.0 ± 63.5", "65.0 ± 63.5"]
    pairs = [Score("a", name, (0.0, 2.0), numbers=seeds)
             for name, seeds in (("cola matthews", (1, 2)), ("mrpc accuracy", (2, 3)))]  # fmt: skip
    assert averages(pairs, NUMBERS) == [Score("a", "average of 2", (1.0,))]


def test_baselines(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("sklearn")
    rows = (f"{'good' if i % 3 else 'bad'} film {i}\t{int(i % 3 > 0)}\n" for i in range(90))
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    folder = comparison(
        tmp_path / "sst2", "text-classification/small", {("sub", 1e-4, 1): {"accuracy": 0.8}},
        **{"data.glue": "sst2", "data.source": str(tmp_path / "rows.tsv"),
           "data.validation_fraction": 0.3},
    )  # fmt: skip
    best = answer(capsys, "table", folder, "--preset", "glue", "--baselines")["best"]
    found = {(score["row"], score["column"]): score["mean"] for score in best}
    assert 50 < found["majority class", "sst2 accuracy"] < 85
    assert found["bag of words", "sst2 accuracy"] == found["bag of words", "average of 1"] == 100
    assert found["Sub-LN, from scratch", "average of 1"] == pytest.approx(80)
    single = run(tmp_path / "run", {"metrics": {"accuracy": 0.7}})
    best = answer(capsys, "table", single, "--preset", "images", "--baselines")["best"]
    assert [(each["row"], each["column"]) for each in best] == [
        ("Sub-LN, 4 layers", "digits"), ("baseline", "digits")]  # fmt: skip
    assert 5 < best[1]["mean"] < 20
