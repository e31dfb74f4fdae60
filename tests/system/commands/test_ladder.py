"""A ladder of real runs is killed and resumed; nothing is run twice, and its page is right."""

import json
import os
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(("more", "fewer"), [("", True), ("--seeds 1,2", False)])
def test_a_budget_is_for_all_jobs_and_may_leave_seeds_out(
    more: str, fewer: bool, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: Any
) -> None:
    seen: dict[str, Any] = {}

    def open_it(folder: Path, asked: ladder.Ladder, prepare: Any) -> None:
        seen.update(capacity=asked.capacity, seeds=asked.seeds)
        prepare(asked)
        raise ValueError("enough")

    def fit(asked: Any, training: str, timed: Any, fewer_seeds: bool) -> None:
        seen.update(training=training, timed=timed, fewer=fewer_seeds)

    monkeypatch.setattr(ladder, "open_ladder", open_it)
    monkeypatch.setattr(ladder, "fit_budget", fit)
    monkeypatch.setattr(sweep, "prepare_task", lambda recipe, _: recipe.model.width)
    monkeypatch.setattr(sweep, "training_in_steps", lambda recipe, task: task)
    time_cell = "magneto.commands.ladder.time_cell"
    monkeypatch.setattr(time_cell, lambda recipe, jobs, _: (recipe.model.width, jobs))
    words = [*WORDS.replace("--seeds 1 ", "").split(), "--out", tmp_path]
    words += ["--budget", "10s", "--jobs", "3"]
    assert "enough" in refused(capsys, *words, *more.split())
    assert seen == {
        "capacity": 0.8 * 10 * 3, "seeds": [1, 2, 3] if fewer else [1, 2], "fewer": fewer,
        "training": 32, "timed": {16: (16, 3), 32: (32, 3)},
    }  # fmt: skip
    (tmp_path / ladder.LADDER_FILE).touch()  # of a ladder that began with fewer seeds
    monkeypatch.setattr(ladder, "read_ladder", lambda folder: Namespace(seeds=[1]))
    refused(capsys, *words, *more.split())
    assert seen["seeds"] == ([1] if fewer else [1, 2])


if __name__ == "__main__":
    ladder.run_local = in_this_process
    sys.exit(main(sys.argv[1:]))
