"""A ladder of real runs is killed and resumed; nothing is run twice, and its page is right."""

import json
import os
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from benchmarks.check_ladder import check_folder
from magneto.cli import main
from magneto.lab import ladder, sweep
from magneto.lab.sweep import work
from tests.commands import answer, refused, started, wait_until, written_at
from tests.ranks import start

pytest.importorskip("sklearn")

WORDS = (
    "ladder image-classification/tiny --widths 16,32 --target 128 --placements pre,sub "
    "--lrs 1e-3,1e-2 --seeds 1 --jobs 1 --model.layers 1 --model.heads 8 --model.ffn_width 64 "
    "--training.steps 8 --training.batch_size 16 --training.evaluate_limit 2 "
    "--training.log_every 2 --training.save_every 2 --training.device cpu --race"
)


def in_this_process(folder: Path, *rest: object) -> bool:
    """Run cells; a worker for each of seven sweeps would have to import torch."""
    return work(folder) >= 0


@pytest.mark.distributed
@pytest.mark.usefixtures("without_pdf")
def test_a_killed_ladder_goes_on_and_its_numbers_are_those_of_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed beside its worker on the first rung, and as the worker on the second one."""
    out = tmp_path / "ladder"
    words = [*WORDS.split(), "--out", str(out)]
    process = started(*words)
    wait_until(lambda: len(written_at(out)) >= 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = written_at(out)
    second = start([__file__, *words], os.environ, tmp_path / "said")
    wait_until(lambda: len(written_at(out / "rungs" / "width-32")) >= 1)
    second.kill()
    second.join()
    done = written_at(out) | done
    assert len(done) >= 7
    monkeypatch.setattr(ladder, "run_local", in_this_process)
    found = answer(capsys, *words)
    assert found["complete"] and found["answer"] and found["forecast"]["from"] == [16, 32]
    assert done.items() <= written_at(out).items(), "a cell that was done was run again"
    assert Path(found["report"]).is_file() and str(tmp_path) not in (out / "report.md").read_text()
    checked = check_folder(out)
    assert not checked.wrong and checked.count > 50
    assert json.loads((out / "forecast.json").read_text())["complete"]


def test_a_budget_is_for_all_jobs_and_may_leave_seeds_out(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_it(folder: Path, asked: ladder.Ladder, prepare: Any) -> None:
        prepare(asked)
        raise ValueError(f"{asked.capacity:g} {asked.seeds}")

    def time_cell(recipe: Any, jobs: int, progress: object) -> tuple[int, int]:
        return recipe.model.width * recipe.model.layers, jobs

    monkeypatch.setattr(ladder, "open_ladder", open_it)
    monkeypatch.setattr(ladder, "fit_budget", fit := MagicMock())
    monkeypatch.setattr(ladder, "read_ladder", lambda folder: Namespace(seeds=[1]))
    monkeypatch.setattr(sweep, "prepare_task", lambda recipe, _: recipe.model.width)
    monkeypatch.setattr(sweep, "training_in_steps", lambda recipe, task: Namespace(steps=task))
    monkeypatch.setattr("magneto.commands.ladder.time_cell", time_cell)
    plain = WORDS.replace("--seeds 1 ", "").replace("--model.layers 1", "--grid model.layers=1,3")
    words = [*plain.split(), "--out", tmp_path, "--budget", "10s"]
    for more, seeds in (("", [1, 2, 3]), ("--seeds 1,2", [1, 2]), ("", [1])):
        if seeds == [1]:  # a ladder that began with fewer seeds
            (tmp_path / ladder.LADDER_FILE).touch()
        assert f" {0.8 * 10 * 3:g} {seeds}" in refused(capsys, *words, "--jobs", 3, *more.split())
        timed = {16: (2 * 16, 3), 32: (2 * 32, 3)}
        assert fit.call_args.args[1:] == (Namespace(steps=32), timed)
        assert fit.call_args.kwargs == {"fewer_seeds": not more}


def test_a_budget_gives_every_run_the_same_number_of_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magneto.commands.ladder.time_cell", lambda *_: (0.01, 0.1))
    words = WORDS.replace("--training.steps 8 --training.batch_size 16", "--training.epochs 1")
    given = [*words.split(), "--grid", "training.batch_size=16,64", "--budget", "1h"]
    answered = refused(capsys, *given, "--out", tmp_path / "x")
    assert "--grid makes the number of steps per epoch differ" in answered
    assert not (tmp_path / "x").exists()


if __name__ == "__main__":
    ladder.run_local = in_this_process
    sys.exit(main(sys.argv[1:]))
