"""The script that recomputes a report from its runs agrees with it, and finds what is wrong."""

import json
from pathlib import Path

import pytest

from benchmarks.check_report import check_folder
from magneto.files import plain
from magneto.lab.comparison import collect
from magneto.lab.grid import Cell, Sweep, cell_directory, open_sweep
from magneto.lab.report.report import write_report
from magneto.recipe import load_recipe

pytestmark = pytest.mark.usefixtures("without_rendering")
PLACEMENTS = ("post", "pre", "sub", "olmo2")
SWEEP = Sweep(
    "image-classification/tiny",
    {},
    {
        "model.placement": list(PLACEMENTS),
        "training.learning_rate": [1e-3, 1e-2, 1.0],
        "seed": [1, 2, 3],
    },
)


def write_run(folder: Path, cell: Cell) -> None:
    """Write what a run leaves: most learn, some stay, rise, diverge or are missing."""
    placement, rate, seed = cell.values.values()
    row = PLACEMENTS.index(placement)
    accuracy = 0.9 - 0.05 * row - 0.07 * seed * rate**0.5 + 0.011 * seed
    ended = {"accuracy": accuracy, "loss": 2.4 - 2 * accuracy}
    status, step, curve = "finished", None, [[10, 2.2], [20, 2.0]]
    if placement == "post" or (placement == "pre" and rate == 1e-2 and seed == 2):
        ended = {"accuracy": 0.1, "loss": 2.29}
    if placement == "sub" and rate == 1.0 and seed == 2:
        ended["loss"] = 3.0
        curve[-1][1] = 2.9
    if rate == 1.0 and (placement == "olmo2" or (placement == "pre" and seed != 3)):
        ended, status, step = {}, "diverged", 17
    if placement == "olmo2" and seed == 3 and rate == 1e-2:
        return
    run = cell_directory(folder, cell)
    run.mkdir(parents=True)
    outcome = {
        "status": status, "step": 20, "metrics": ended, "diverged_at": step, "reason": "",
        "seconds": 1.0, "curve": curve, "validation_curve": [], "initial_loss": 2.4 + seed / 100,
    }  # fmt: skip
    (run / "outcome.json").write_text(json.dumps(outcome))
    rows = [{"step": step, "loss": loss} for step, loss in curve]
    rows += [{f"validation_{key}": value for key, value in ended.items()}] if ended else []
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(params=[0.1, None])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A comparison's folder with its report, with a trivial baseline and without one."""
    task = type(load_recipe(SWEEP.recipe).build_task())
    baseline = {} if request.param is None else {"accuracy": request.param}
    monkeypatch.setattr(task, "baseline", lambda *_: baseline)
    open_sweep(tmp_path, SWEEP)
    for cell in SWEEP.cells():
        write_run(tmp_path, cell)
    comparison = plain(collect(tmp_path, SWEEP, "magneto compare"))
    (tmp_path / "comparison.json").write_text(json.dumps(comparison))
    write_report(comparison, tmp_path)
    return tmp_path


def test_every_number_is_that_of_the_runs_and_a_wrong_one_is_found(folder: Path) -> None:
    check = check_folder(folder)
    assert check.wrong == []
    assert check.count > 150
    page = folder / "report.html"
    text = page.read_text()
    pre, summary = json.loads((folder / "comparison.json").read_text())["summary"][1:3]
    failed, finished = pre["failed_there"]
    right_count, wrong_count = (
        f"({count} of {finished} failed at {pre['next_rate']:g})" for count in (failed, failed + 1)
    )
    score, interval = f"{summary['score']:.4f}", f"± {summary['interval']:.4f}"
    for right, wrong in (
        (f">{score} {interval}<", f">{summary['score'] + 1e-4:.4f} {interval}<"),
        (f">{score} {interval}<", f">{score} ± {summary['interval'] + 1e-4:.4f}<"),
        (right_count, wrong_count),
        ("1 of 36 runs have no", "2 of 36 runs have no"),
        ("the best score so far", "5 and the best score so far"),
    ):
        assert right in text
        page.write_text(text.replace(right, wrong, 1))
        assert check_folder(folder).wrong, right
