"""A grid survives being killed, shared and repeated: no cell lost, none run twice, one table."""

import contextlib
import json
import math
import os
import random
import runpy
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest
from filelock import FileLock

from magneto.cli import main
from magneto.commands.compare import link_best
from magneto.files import acquire_lock
from magneto.lab.grid import PLACEMENT, RATE, SEED, Cell, Sweep, is_done, open_sweep
from magneto.lab.sweep import (
    best_cell,
    delete_weights,
    end_if_learned,
    is_behind,
    run_cell,
    run_cluster,
    run_local,
    work,
)
from magneto.training.logging import TrainingResult, read_rows
from tests.commands import answer, printed, refused, spelt, started, wait_until, written_at

pytest.importorskip("sklearn")

SMALL = {
    "model.width": 16, "model.layers": 1, "model.heads": 2, "model.ffn_width": 16,
    "training.steps": 12, "training.batch_size": 8, "training.save_every": 2,
    "training.log_every": 2, "training.evaluate_every": 0, "training.device": "cpu",
}  # fmt: skip
GRID = {PLACEMENT: ["pre", "sub"], RATE: [1e-3, 1e-2], SEED: [1]}
TIMED = ("seconds",)


def sweep() -> Sweep:
    """Two cells of few steps."""
    few = {**SMALL, "training.epochs": 0.02}
    return Sweep("image-classification/tiny", few, {**GRID, RATE: [1e-3]}, probed=True)


def outcomes(folder: Path, grid: Sweep) -> dict[str, dict]:
    found = {}
    for cell in grid.cells():
        path = folder / "cells" / cell.name / "outcome.json"
        values = json.loads(path.read_text())
        found[cell.name] = {key: value for key, value in values.items() if key not in TIMED}
    return found


def command(folder: Path, *more: str) -> list[str]:
    words = f"""compare image-classification/tiny --placements pre,sub --lrs 1e-3,1e-2 --jobs 2
        --out {folder} --no-measurements"""
    return [*words.split(), *spelt(SMALL), *more]


def test_a_cell_that_was_done_meanwhile_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker ends it after this one has looked, and before this one has its lock."""
    open_sweep(tmp_path, sweep())

    def late(cell: Path) -> FileLock | None:
        lock = acquire_lock(cell)
        (cell / "outcome.json").write_text('{"status": "finished", "step": 12}')
        return lock

    monkeypatch.setattr("magneto.lab.sweep.acquire_lock", late)
    assert work(tmp_path) == 0
    assert not list(tmp_path.glob("cells/*/metrics.jsonl"))


def test_a_cell_that_is_held_is_left_alone_and_none_is_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one held by a worker that was stopped; then by nobody until it is free."""
    grid = sweep()
    open_sweep(tmp_path, grid)
    held = tmp_path / "cells" / grid.cells()[0].name
    lock, waited = acquire_lock(held), []
    assert lock is not None

    def free(seconds: float) -> None:
        waited.append(seconds)
        assert len(list(tmp_path.glob("cells/*/outcome.json"))) == 1
        assert not (held / "metrics.jsonl").exists()
        lock.release()

    monkeypatch.setattr("magneto.lab.sweep.time", SimpleNamespace(sleep=free))
    assert work(tmp_path) == 2 and len(waited) == 1
    assert is_done(tmp_path, grid.cells()[0])
    probed = [read_rows(path) for path in tmp_path.glob("cells/*/probe.jsonl")]
    assert [[row["step"] for row in rows] for rows in probed] == [[2, 4]] * 2
    before = outcomes(tmp_path, grid)
    best = max(before, key=lambda name: before[name]["metrics"]["accuracy"])
    assert [path.parent.name for path in tmp_path.glob("cells/*/final")] == [best]
    assert work(tmp_path) == 0
    open_sweep(tmp_path, grid)
    assert before == outcomes(tmp_path, grid) and not list(tmp_path.glob("cells/*/checkpoints"))


def test_a_better_cell_that_ends_while_weights_are_deleted_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker ends it between this one's looks, and leaves no weights but its own."""
    first, second = sweep().cells()
    for cell in (first, second):
        (tmp_path / "cells" / cell.name / "final").mkdir(parents=True)

    def end(cell: Cell, score: float) -> None:
        outcome = {"status": "finished", "step": 4, "metrics": {"loss": score}}
        (tmp_path / "cells" / cell.name / "outcome.json").write_text(json.dumps(outcome))

    def late(*given: Any) -> Cell | None:
        found = best_cell(*given)
        end(second, 1.0)
        return found

    end(first, 2.0)
    monkeypatch.setattr("magneto.lab.sweep.best_cell", late)
    delete_weights(tmp_path, sweep(), "loss", False)
    assert (tmp_path / "cells" / second.name / "final").exists()
    delete_weights(tmp_path, sweep(), "loss", False)
    assert [path.parent.name for path in tmp_path.glob("cells/*/final")] == [second.name]
    (tmp_path / "cells" / first.name / "final").mkdir()
    keeping = replace(sweep(), keep_weights=True)
    link_best(tmp_path, keeping, {"metric": "loss", "higher_is_better": False})
    assert len(list(tmp_path.glob("cells/*/final"))) == 2
    for _ in range(2):
        best = link_best(tmp_path, sweep(), {"metric": "loss", "higher_is_better": False})
        assert best == tmp_path / "best" and best.resolve().name == second.name
    assert best_cell(tmp_path, sweep(), "loss", True) == first
    lost = tmp_path / "cells" / second.name / "outcome.json"
    lost.write_text(lost.read_text().replace("finished", "diverged"))
    assert best_cell(tmp_path, sweep(), "loss", False) == first, "a diverged run is never the best"


def test_a_worker_ends_with_the_run_that_a_signal_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is left to another worker."""
    grid = sweep()
    open_sweep(tmp_path, grid)
    ends = [SimpleNamespace(status=status) for status in ("finished", "interrupted")]
    run_cell = MagicMock(side_effect=ends)
    monkeypatch.setattr("magneto.lab.sweep.run_cell", run_cell)
    assert work(tmp_path) == 1
    assert [given.args[2] for given in run_cell.call_args_list] == grid.cells()
    for cell in grid.cells():
        lock = acquire_lock(tmp_path / "cells" / cell.name)
        assert lock is not None
        lock.release()
    assert work(tmp_path, orphaned=lambda: True) == 0 and run_cell.call_count == 2


@pytest.mark.parametrize(
    "kills",
    [pytest.param(1, marks=pytest.mark.distributed), pytest.param(10, marks=pytest.mark.slow)],
)
def test_a_killed_grid_gives_the_same_table(
    tmp_path: Path, kills: int, capsys: pytest.CaptureFixture
) -> None:
    """The whole group is killed, or the parent alone; what is done stays as it was."""
    folder, chance = tmp_path / "killed", random.Random(1)
    done: dict[Path, int] = {}
    for number in range(kills):
        process = started(*command(folder))
        time.sleep(chance.uniform(3.0, 9.0))
        if number % 3 == 2:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert done.items() <= written_at(folder).items(), "a cell that was done was run again"
        done = written_at(folder)
    assert answer(capsys, *command(folder))["complete"]
    assert done.items() <= written_at(folder).items()
    typed = {key: str(value) for key, value in SMALL.items()}
    grid = Sweep("image-classification/tiny", typed, GRID)
    open_sweep(tmp_path / "whole", grid)
    work(tmp_path / "whole")
    assert outcomes(tmp_path / "whole", grid) == outcomes(folder, grid)


@pytest.mark.distributed
def test_compare_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answer(capsys, *command(tmp_path / "grid"))
    assert found["complete"] and found["learning_rates"] == [1e-3, 1e-2]
    assert {row["placement"] for row in found["summary"]} == {"pre", "sub"}
    page = tmp_path / "grid" / "report.html"
    assert found["report"] == str(page) and str(tmp_path) not in page.read_text()
    page.unlink()
    (kept,) = tmp_path.glob("grid/cells/*/final")
    started_by = [json.loads(path.read_text()) for path in tmp_path.glob("grid/cells/*/env*.json")]
    assert [len(each) for each in started_by] == [1] * 4, "two workers ran a cell"
    for cell in tmp_path.glob("grid/cells/*"):  # as a worker that was killed leaves them
        (cell / "best").mkdir()
        (cell / "final").mkdir(exist_ok=True)
    monkeypatch.setattr("subprocess.Popen", None)  # nothing is left to run
    output = printed(capsys, *command(tmp_path / "grid"))
    assert list(tmp_path.glob("grid/cells/*/final")) == [kept]
    assert not list(tmp_path.glob("grid/cells/*/best"))
    assert "Pre-LN" in output and str(page) in output and page.is_file()
    comparison = json.loads((tmp_path / "grid" / "comparison.json").read_text())
    assert len(comparison["cells"]) == 4 and comparison["cells"][0]["curve"]


def living_workers(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"magneto.lab.sweep" in words and str(folder).encode() in words:
                found.append(path.parent.name)
    return found


def test_a_cell_is_trained_on_its_workers_device_and_raced_once_at_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = replace(sweep(), race=True, probed=False, grid={**GRID, RATE: [1e-3], SEED: [5]})
    open_sweep(tmp_path, grid)
    asked: list[Any] = []
    (cell, *_), end = grid.cells(), TrainingResult("finished", 9, {}, {}, None, "", 1.0)

    def trained(task: Any, config: Any, run: Path, **how: Any) -> TrainingResult:
        asked.append((config.device, how["seed"], how["resume"]))
        of_run = {"config": SimpleNamespace(steps=9), "detector": SimpleNamespace(first=2.5)}
        for step in (4, 5, 6):
            how["hooks"][0].function(SimpleNamespace(step=step, **of_run))
        (run / "metrics.jsonl").touch()
        (run / "diverged").mkdir(exist_ok=True)
        return end

    monkeypatch.setattr("magneto.lab.sweep.train", trained)
    monkeypatch.setattr("magneto.lab.sweep.is_behind", lambda *given: asked.append(given) or True)
    monkeypatch.setattr("magneto.lab.sweep.end_if_learned", lambda state: asked.append(state.step))
    (tmp_path / "cells" / cell.name).mkdir(parents=True)
    assert run_cell(tmp_path, grid, cell, "cuda:7", lambda: False) == end
    assert asked == [("cuda:7", 5, True), (tmp_path, grid, cell, 5), 5]
    found = json.loads((tmp_path / "cells" / cell.name / "outcome.json").read_text())
    assert (found["initial_loss"], found["raced_at"]) == (2.5, 5)
    asked.clear()
    assert not list(tmp_path.glob("cells/*/diverged")), "it is not the best cell"
    run_cell(tmp_path, replace(grid, race=False, keep_weights=True), cell, None, lambda: False)
    assert asked == [("cpu", 5, True)] and list(tmp_path.glob("cells/*/diverged"))


def test_workers_share_the_gpus_and_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some cells may be left when the workers have ended."""
    done, begun = tmp_path / "cells" / sweep().cells()[0].name, list[tuple]()
    done.mkdir(parents=True)
    (done / "outcome.json").write_text('{"status": "finished", "step": 12}')

    def begin(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        begun.append((*command[3:], env["OMP_NUM_THREADS"]))
        return SimpleNamespace(poll=lambda: 0, wait=lambda: 0, returncode=len(begun) % 2)

    monkeypatch.setattr("magneto.lab.sweep.devices", lambda: ["cuda:0", "cuda:1"])
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    monkeypatch.setattr("subprocess.Popen", begin)
    assert not run_local(tmp_path, sweep(), 3, lambda *counts: begun.append(counts))
    assert begun == [*[(str(tmp_path), f"cuda:{index}", "2") for index in (0, 1, 0)], (1, 2)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.distributed),
        pytest.param(signal.SIGKILL, marks=pytest.mark.distributed),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_no_worker_outlives_its_comparison(tmp_path: Path, number: int) -> None:
    """And what is stopped by a signal goes on with the same command to the same end."""
    slow = ["--training.steps", "100000", "--training.save_every", "5"]
    grid = tmp_path / "grid"
    process = started(*command(grid), *slow)
    try:
        wait_until(lambda: any(grid.glob("cells/*/checkpoints/step-*")))
        assert living_workers(grid)
        process.send_signal(number)
        code = process.wait(timeout=60)
        assert code == (130 if number != signal.SIGKILL else -signal.SIGKILL)
        wait_until(lambda: not living_workers(grid))
    finally:  # a failure leaves nothing behind that trains on
        process.kill()
        for worker in living_workers(grid):
            os.kill(int(worker), signal.SIGKILL)
    for cell in grid.glob("cells/*"):
        lock = acquire_lock(cell)
        assert lock is not None  # nobody living holds it
        lock.release()


class Worker:
    """In the place of a worker's process, which would take seconds to import torch."""

    returncode = 0

    def __init__(self, command: list[str], **how: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", command[2:])
            try:
                runpy.run_module(command[2], run_name="__main__")
            except SystemExit as ended:  # which Python would print
                print(ended.code, file=sys.stderr)
                self.returncode = 1

    def poll(self) -> int:
        return self.returncode

    wait = poll


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_workers_error_is_one_line(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("subprocess.Popen", Worker)
    refuse = MagicMock(side_effect=ValueError("no such optimizer"))
    monkeypatch.setattr("magneto.training.loop.build_optimizer", refuse)
    words = f"""compare causal-lm/tiny --data {book} --placements pre --lrs 1e-3 --jobs 1
        --out {tmp_path} --data.tokenizer bytes"""
    assert main(words.split()) == 2
    output = capsys.readouterr().err
    assert "Traceback" not in output
    assert "magneto: no such optimizer" in output
    assert "every worker ended with the error above" in output


def test_a_cluster_gets_the_jobs_and_options(tmp_path: Path, monkeypatch) -> None:
    submitit = MagicMock()
    monkeypatch.setattr("magneto.lab.sweep.import_extra", lambda *names: submitit)
    assert len(run_cluster(tmp_path, 3, "local", {"mem_gb": 8})) == 3
    submitit.AutoExecutor.assert_called_once_with(folder=tmp_path / "jobs", cluster="local")
    executor = submitit.AutoExecutor.return_value
    executor.update_parameters.assert_called_once_with(name="magneto-compare", mem_gb=8)
    assert executor.submit.call_args_list == [call(work, tmp_path)] * 3


@pytest.mark.parametrize(("words", "message"), [
    ("local --cluster-option nonsense=8", "Parameter 'nonsense' need to be prefixed"),
    ("local --cluster-option mem_gb=much", 'Parameter "mem_gb" expected type'),
    ("slurm --cluster-option mem_gb=8", 'Could not detect "srun"'),
])  # fmt: skip
def test_a_cluster_is_refused_before_data_is_read(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    given = ["compare", "causal-lm/tiny", "--data", "nowhere", "--out", tmp_path / "out"]
    assert message in refused(capsys, *given, "--cluster", *words.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_cluster_runs_the_same_cells(tmp_path: Path, capsys) -> None:
    pytest.importorskip("submitit")
    words = [*command(tmp_path / "grid"), "--cluster", "local"]
    assert answer(capsys, *words, "--jobs", "1")["complete"]


@pytest.mark.parametrize(("score", "ended"), [(2.9, True), (2.99, False), (math.nan, False)])
def test_a_run_behind_is_stopped_if_it_has_learned(
    score: float, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its baseline on three batches is 3, which it must beat by 2 %."""
    monkeypatch.setattr("magneto.lab.sweep.run_evaluation", lambda state: {"loss": score})
    task = SimpleNamespace(primary_metric="loss", higher_is_better=False,
                           baseline=lambda limit: {"loss": float(limit)})  # fmt: skip
    config = SimpleNamespace(evaluate_limit=3)
    state: Any = SimpleNamespace(task=task, config=config, step=7, stop=None, metrics={})
    end_if_learned(state)
    assert (state.metrics, state.stop and state.stop.status) == (
        ({"loss": 2.9}, "finished") if ended else ({}, None)
    )


def test_a_run_that_can_not_be_best_is_behind(tmp_path: Path) -> None:
    """Two runs on one side must be ahead of it, the further one most, and beyond noise.

    Runs of other rows and seeds, and steps before half of the present one or after it, don't count.
    """
    rates = {RATE: [1e-3, 3e-3, 1e-2]}
    grid = Sweep("causal-lm/tiny", {}, {PLACEMENT: ["pre", "sub"], SEED: [1, 2], **rates})
    slow, middle, fast = own = grid.cells()[:3]

    def log(levels: tuple[float, float, float], noise: float = 0.01) -> None:
        for cell, level in zip(own, levels, strict=True):
            run = tmp_path / "cells" / cell.name
            run.mkdir(parents=True, exist_ok=True)
            chance = random.Random(cell.name)
            rows = [{"step": 10 * i, "loss": (level if 3 <= i <= 5 else 9 - level)
                     + noise * chance.gauss(0, 1)} for i in range(11)]  # fmt: skip
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    log((2.5, 2.6, 2.8))
    assert is_behind(tmp_path, grid, fast, 50) and not is_behind(tmp_path, grid, middle, 50)
    assert not is_behind(tmp_path, grid, fast, 200), "the others have not come so far"
    log((2.6, 2.5, 2.8))
    assert not is_behind(tmp_path, grid, fast, 50), "it may be beside the best"
    log((2.8, 2.6, 2.5))
    assert is_behind(tmp_path, grid, slow, 50)
    log((2.5, 2.6, 2.8), noise=1.0)
    assert not is_behind(tmp_path, grid, fast, 50)
