"""The table takes the best point of each grid, and only points that are whole."""

import json
import math
from pathlib import Path

import pytest
import yaml

from magneto.analysis.sweep.cells import Sweep
from magneto.analysis.sweep.sweep import cell_directory, open_sweep
from magneto.cli import main
from magneto.commands.glue_table import (
    Score,
    average,
    baseline_scores,
    read_folders,
    read_scores,
    row_name,
    table,
)
from magneto.config import ConfigError
from magneto.recipe import recipe_path


def comparison(folder: Path, task: str, results: dict[tuple, dict | None], **overrides) -> Path:
    """Write a comparison's folder with made-up outcomes by (placement, rate, seed)."""
    places, rates, seeds = (sorted({key[i] for key in results}, key=str) for i in range(3))
    grid = {"model.placement": places, "training.learning_rate": rates, "seed": seeds}
    changes = {"data.glue": task, **overrides}
    sweep = Sweep("text-classification/small", changes, grid)
    open_sweep(folder, sweep)
    for cell in sweep.cells():
        metrics = results.get(tuple(cell.values.values()))
        if metrics is not None:
            directory = cell_directory(folder, cell)
            directory.mkdir(parents=True)
            status = "diverged" if metrics == {} else "finished"
            content = {"status": status, "step": 1, "metrics": metrics, "curve": []}
            (directory / "outcome.json").write_text(json.dumps(content))
    return folder


def cola(*values: float) -> list[dict]:
    return [{"matthews": value, "accuracy": 0.99} for value in values]


def test_best_of_grid_then_mean_over_seeds(tmp_path: Path) -> None:
    results = {("sub", 1e-4, s): m for s, m in enumerate(cola(0.10, 0.20, 0.30), 1)}
    results |= {("sub", 3e-4, s): m for s, m in enumerate(cola(0.24, 0.25, 0.26), 1)}
    results |= {("pre", 1e-4, s): m for s, m in enumerate(cola(0.9, 0.9), 1)}  # one is missing
    results |= {("pre", 1e-4, 3): None}
    results |= {("pre", 3e-4, s): m for s, m in enumerate([*cola(0.1, 0.3), {}], 1)}  # diverged
    folder = comparison(tmp_path / "cola", "cola", results)
    [score] = read_scores(folder)
    assert score.row == "Sub-LN, from scratch" and score.column == ("cola", "matthews")
    assert score.point["training.learning_rate"] == 3e-4
    assert score.seeds == pytest.approx((24, 25, 26)) and score.mean == pytest.approx(25)
    assert score.interval == pytest.approx(4.3026527 / math.sqrt(3))


def test_rows_are_placements_and_origins(tmp_path: Path) -> None:
    results = {(p, 1e-4, 1): m for p, m in zip(("post", "pre"), cola(0.2, 0.3), strict=True)}
    origin = {"model.pretrained": "runs/mlm-{placement}"}
    scores = read_scores(comparison(tmp_path / "a", "cola", results, **origin))
    assert [s.row for s in scores] == ["Post-LN, from runs/mlm-post", "Pre-LN, from runs/mlm-pre"]
    assert math.isnan(scores[0].interval)


def test_a_recipe_file_s_own_origin_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "fine.yaml"
    values = yaml.safe_load(recipe_path("text-classification/small").read_text())
    values["model"] |= {"pretrained": "runs/mlm-{placement}", "placement": "deepnorm"}
    path.write_text(yaml.safe_dump(values))
    sweep = Sweep(str(path), {"data.glue": "cola"}, {"training.learning_rate": [1e-4]})
    assert row_name(sweep, sweep.cells()[0]) == "DeepNorm, from runs/mlm-deepnorm"


def test_two_folders_with_one_row_are_a_question(tmp_path: Path) -> None:
    folders = [
        comparison(tmp_path / name, "cola", {(place, 1e-4, 1): cola(0.2)[0]})
        for name, place in (("a", "sub"), ("b", "pre"), ("c", "sub"))
    ]
    assert len(read_folders(folders[:2])) == 2
    with pytest.raises(ConfigError, match=r"a and .*c both have Sub-LN, from scratch on cola"):
        read_folders(folders)


def test_both_sets_of_mnli_are_of_one_point(tmp_path: Path) -> None:
    results = {
        ("sub", 1e-4, 1): {"accuracy": 0.7, "accuracy_mismatched": 0.5},
        ("sub", 3e-4, 1): {"accuracy": 0.6, "accuracy_mismatched": 0.9},
    }
    scores = read_scores(comparison(tmp_path / "mnli", "mnli", results))
    assert [(s.column[1], s.mean) for s in scores] == [
        ("accuracy", pytest.approx(70)),
        ("accuracy_mismatched", pytest.approx(50)),
    ]


def test_the_papers_average() -> None:
    """Its Sub-LN row: eight numbers, MNLI's two apart, RTE left out."""
    numbers = {
        ("mnli", "accuracy"): 86.7, ("mnli", "accuracy_mismatched"): 86.7,
        ("qnli", "accuracy"): 92.4, ("qqp", "accuracy"): 91.2, ("sst2", "accuracy"): 93.9,
        ("cola", "matthews"): 62.9, ("mrpc", "accuracy"): 87.2, ("stsb", "pearson"): 89.2,
        ("rte", "accuracy"): 1.0,
    }  # fmt: skip
    scores = [Score("Sub-LN", column, (value,), {}) for column, value in numbers.items()]
    assert round(average(scores).mean, 1) == 86.3
    lines = table(scores)
    assert lines[0][-2:] == ["rte accuracy", "average of 8"] and lines[1][-2:] == ["1.0", "86.3"]


def test_the_average_is_over_what_every_row_has() -> None:
    scores = [
        Score("a", ("cola", "matthews"), (10.0, 20.0), {}),
        Score("a", ("mrpc", "accuracy"), (60.0, 70.0), {}),
        Score("b", ("mrpc", "accuracy"), (80.0,), {}),
    ]
    lines = table(scores)
    assert lines[0][-1] == "average of 1" and lines[2][1:] == ["-", "80.0", "80.0"]
    assert lines[1][1:] == ["15.0 ± 63.5", "65.0 ± 63.5", "65.0 ± 63.5"]


def test_baselines_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("sklearn")
    rows = (f"{'good' if i % 3 else 'bad'} film {i}\t{int(i % 3 > 0)}\n" for i in range(90))
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    folder = comparison(
        tmp_path / "sst2", "sst2", {("sub", 1e-4, 1): {"accuracy": 0.8}},
        **{"data.source": str(tmp_path / "rows.tsv"), "data.validation_fraction": 0.3},
    )  # fmt: skip
    found = {score.row: score.mean for score in baseline_scores(folder)}
    assert 50 < found["majority class"] < 85 and found["bag of words"] == 100
    assert main(["glue", str(folder), "--baselines", "--markdown"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "|  | sst2 accuracy | average of 1 |" and len(out) == 5
    assert out[2] == "| Sub-LN, from scratch | 80.0 | 80.0 |"
    assert main(["glue", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"][0]["mean"] == pytest.approx(80)


def test_other_comparisons_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no comparison in"):
        read_scores(tmp_path)
    results = {("sub", 1e-4, 1): {"accuracy": 0.8}}
    with pytest.raises(ConfigError, match="no task of GLUE"):
        read_scores(comparison(tmp_path / "own", "none", results))
