"""`magneto compare` of images and texts, with and without measurements."""

import shutil
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

import pytest

from magneto.cli import main
from magneto.commands import compare
from magneto.files import read_object, write_json
from magneto.lab import comparison, ladder, sweep
from magneto.lab.grid import RATE, SEED, Sweep, cell_directory, is_done, read_sweep
from magneto.lab.sweep import work
from magneto.progress import ProgressBars
from tests.commands import outcome, printed, refused, spelt
from tests.shrunken import shrunken

SMALL = {
    "model.width": 16, "model.layers": 1, "model.heads": 2, "model.ffn_width": 16,
    "training.steps": 2, "training.warmup_steps": 1, "training.batch_size": 6,
    "training.evaluate_every": 0, "training.save_every": 0, "training.evaluate_limit": 1,
    "training.device": "cpu", "data.tokenizer": "bytes", "model.max_length": 96,
}  # fmt: skip
COMPARED = ("--placements", "sub", "--grid", "model.experts=decoupled,shared_attention",
            "--lrs", "1e-3")  # fmt: skip


@pytest.fixture(autouse=True)
def quick(module_cache: Path, without_rendering: None, monkeypatch: Any) -> None:
    """Run cells in this process, and measure updates of shallow stacks."""
    for module in (sweep, ladder):
        monkeypatch.setattr(module, "run_local", lambda folder, *rest: work(folder) >= 0)
    monkeypatch.setattr(comparison, "DEPTHS", (1, 2))
    monkeypatch.setattr(comparison, "SEEDS", (0, 1))


def words(task: str, place: Path) -> list[str]:
    """Return a task's tiny recipe with options that make it smaller."""
    return [f"{task}/tiny", *spelt({**shrunken(task, place), **SMALL})]


def test_a_clusters_jobs_need_no_workers_here(tmp_path: Path, monkeypatch: Any) -> None:
    called: list[tuple] = []
    monkeypatch.setattr(sweep, "run_cluster", lambda *given: called.append(given) or [])
    monkeypatch.setattr(sweep, "run_local", lambda *given: called.append(given[:3]) or True)
    for cluster in ("slurm", None):
        args = Namespace(jobs=3, cluster=cluster, cluster_option=[("mem_gb", "8")])
        assert compare.run(tmp_path, "a sweep", args, ProgressBars())
    assert called == [(tmp_path, 3, "slurm", {"mem_gb": "8"}), (tmp_path, "a sweep", 0),
                      (tmp_path, "a sweep", 3)]  # fmt: skip


def test_a_comparison_is_measured_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """This includes rows of another field than the placement."""
    out = tmp_path / "compared"
    given = ["compare", *words("visual-question-answering", tmp_path), *COMPARED]
    assert main([*given, "--out", str(out)]) == 0
    found = read_object(out / "comparison.json")
    rows = ["sub,experts=decoupled", "sub,experts=shared_attention"]
    measured = found["measured"]
    assert found["placements"] == rows == list(measured["activations"])
    assert {update["placement"] for update in measured["updates"]} == set(rows)
    assert set(measured["bounds"]) == set(rows) and measured["width"] == 16
    report = (out / "report.md").read_text()
    growth = report[report.index("## Growth") : report.index("## Reproduction")]
    assert growth.count("Sub-LN, experts=decoupled") == 2, "in both tables"
    assert "| encoder.transformer.layers.0 |" in growth
    assert 'href="curves.csv"' in (out / "report.html").read_text()
    line = refused(capsys, "report", out)
    assert f"{out} is a comparison, not a run; its report is {out / 'report.html'}" in line


def test_what_can_not_be_measured_hides_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "unmeasured"
    given = ["compare", *words("visual-question-answering", tmp_path), "--lrs", "1e-3",
             "--placements", "sub", "--out", str(out)]  # fmt: skip

    def fail(*rest: Any) -> dict:
        assert (out / "report.md").is_file(), "the report is written before"
        raise ValueError("no such thing\nas that")

    monkeypatch.setattr(comparison, "measure_recipes", fail)
    assert main(given) == 0
    output = capsys.readouterr()
    assert "Updates and activations could not be measured: no such thing\n" in output.err
    assert "\n\n\n" not in output.out
    assert "accuracy" in output.out and "measured" not in read_object(out / "comparison.json")


def test_only_rows_whose_runs_all_failed_are_probed_for_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row with a missing run may still learn."""
    rows = {"pre": (0, 0), "post": (0, 1), "sub": (1, 0)}
    summary = [{"placement": name, "finished": finished, "missing": missing}
               for name, (finished, missing) in rows.items()]  # fmt: skip
    monkeypatch.setattr(comparison, "measure", lambda folder, sweep, failed, report: failed)
    compared: dict[str, Any] = {"summary": summary}
    asked: Any = "no sweep is read"
    compare.add_measurements(tmp_path, asked, compared, ProgressBars(quiet=True))
    assert compared["measured"] == ["pre"]


# Of each command: more options, its file, and options with which it would begin other runs.
CHANGED = {
    "compare": ("--no-measurements", "sweep.json", ("--more-seeds 2", "--seeds 1,2")),
    "ladder": ("--target 64 --widths 8,16 --seeds 1", "ladder.json",
               ("--widths 8,16,32", "--widths 8,16")),
}  # fmt: skip


@pytest.mark.parametrize("command", CHANGED)
def test_runs_on_changed_data_do_not_join(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    more, file, others = CHANGED[command]
    table, out = tmp_path / "rows.csv", tmp_path / "out"
    rows = [f"a text {n},{'even' if n % 2 == 0 else 'odd'}" for n in range(24)]
    table.write_text("\n".join(["text,label", *rows]))
    given = [command, "text-classification/tiny", "--data", table, "--out", out, "--placements",
             "sub", "--lrs", "1e-3", *more.split(),
             *spelt({**SMALL, "model.max_length": 16, "model.heads": 4})]  # fmt: skip
    printed(capsys, *given)
    if command == "ladder":
        about = read_object(out / "rungs" / "width-8" / "rung.json")
        assert (about["metric"], about["higher_is_better"], about["steps"]) == ("accuracy", True, 2)
        assert (about["adam_eps"], 0.4 < about["baseline"] < 1) == (1e-8, True)
        assert 0.5 < about["baseline_loss"] < 1 and len(about["updates"]["sub"]) == 3
    table.write_text("\n".join(["text,label", *rows, "another text,odd"]))
    for words in others:
        before = (out / file).read_bytes(), {*out.rglob("cells/*")}
        line = refused(capsys, *given, *words.split())
        assert "changed after the run began" in line
        assert ((out / file).read_bytes(), {*out.rglob("cells/*")}) == before
        shutil.rmtree(out / "rungs" / "width-16", ignore_errors=True)


def test_more_seeds_follow_the_best_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the seeds 2, the next rate below is best: the rate below that gets them too."""
    scores = {1: (0.3, 0.5, 0.6, 0.7, 0.5), 2: (0.3, 0.5, 0.9, 0.2, 0.2)}
    rates = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
    complete = True

    def run(folder: Path, grid: Sweep, *rest: Any) -> bool:
        for cell in grid.cells()[: None if complete else 3]:
            score = scores[cell.values[SEED]][rates.index(cell.values[RATE])]
            write_json(cell_directory(folder, cell) / "outcome.json", {
                "status": "finished", "reason": "", "metrics": {"accuracy": score, "loss": 1.0},
                "curve": [], "diverged_at": None, "seconds": 1.0, "step": 2, "initial_loss": 2.3,
            })  # fmt: skip
        return complete

    monkeypatch.setattr(sweep, "run_local", run)
    given = ["compare", "image-classification/tiny", "--placements", "sub", "--lrs",
             "1e-2,1e-4,1e-3,1,1e-1", "--no-measurements", "--keep-weights"]  # fmt: skip
    out = tmp_path / "out"
    output = printed(capsys, *given, "--more-seeds", "2", "--out", out)
    grid = read_sweep(out)
    assert grid.keep_weights and all(is_done(out, cell) for cell in grid.cells())
    further = sorted((values[RATE], values[SEED]) for values in grid.further)
    assert further == [(rate, 2) for rate in rates[1:]]
    head, row = output.splitlines()[:2]
    assert [float(word) for word in head.split()[1:]] == rates and "0.75" in row.split()[3]
    complete = False
    code, _, err = outcome(capsys, *given, "--more-seeds", "2", "--out", tmp_path / "stopped")
    assert code == 1 and compare.INCOMPLETE in err and not read_sweep(tmp_path / "stopped").further


def test_fields_of_the_grid_are_read_from_the_last_one() -> None:
    fields = compare.other_fields([("model.layers", ["1", "2"]), ("model.width", ["8"])], {})
    assert list(fields.items()) == [("model.width", ["8"]), ("model.layers", ["1", "2"])]


@pytest.mark.parametrize("word", ["=1", "mem_gb"])
def test_a_clusters_option_has_a_name_and_a_value(word: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be NAME=VALUE"):
        compare.pair(word)
