"""What a run is resumed from, and what is never written over; more is in test_loop."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from magneto.progress import ProgressBars
from magneto.training.checkpoint import list_checkpoints
from magneto.training.loop import TrainingState, train
from magneto.weights import find_weights
from tests.unit.training.toy import Toy, config, run_toy


def damage(run: Path) -> None:
    for checkpoint in list_checkpoints(run):
        (checkpoint / "state.json").write_text("{")


def test_good_weights_are_not_written_over_from_step_0(tmp_path: Path) -> None:
    """A finished run whose checkpoints were all damaged began again, and lost its results."""
    run_toy(tmp_path, steps=20)
    before = (tmp_path / "result.json").read_bytes(), (tmp_path / "metrics.jsonl").read_bytes()
    damage(tmp_path)
    with pytest.raises(ValueError, match="no undamaged checkpoint"):
        run_toy(tmp_path, steps=30, resume=True)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="no undamaged checkpoint"):
        run_toy(tmp_path, steps=30, resume=True)
    after = (tmp_path / "result.json").read_bytes(), (tmp_path / "metrics.jsonl").read_bytes()
    assert before == after and find_weights(tmp_path, "final").is_dir()
    assert run_toy(tmp_path, steps=20, resume=True).step == 20  # finished: left as it is
    assert (tmp_path / "result.json").read_bytes() == before[0]


@pytest.mark.parametrize("stopped_by", ["a full disk", "a kill"])
def test_weights_of_before_the_first_checkpoint_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_by: str
) -> None:
    """An evaluation kept its best, and the first checkpoint never came."""
    whole = run_toy(tmp_path / "whole", steps=20, evaluate_every=5)

    def full(state: TrainingState) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("magneto.training.loop.save", full)
        with pytest.raises(OSError, match="No space left"):
            run_toy(tmp_path / "run", steps=20, evaluate_every=5, save_every=10)
    if stopped_by == "a kill":  # between two logs: the last rows are not written
        rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(rows[:-1]))
    assert (tmp_path / "run" / "best").is_dir() and not list_checkpoints(tmp_path / "run")
    again = run_toy(tmp_path / "run", steps=20, evaluate_every=5, save_every=10, resume=True)
    assert (again.best, again.metrics) == (whole.best, whole.metrics)


def test_best_weights_of_a_long_run_are_not_lost_with_its_checkpoints(tmp_path: Path) -> None:
    run_toy(tmp_path, steps=20, evaluate_every=5, save_every=5)
    for name in ("checkpoints", "final"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "result.json").unlink()
    with pytest.raises(ValueError, match="no undamaged checkpoint"):
        run_toy(tmp_path, steps=20, evaluate_every=5, save_every=5, resume=True)
    (tmp_path / "metrics.jsonl").unlink()  # then nobody knows how far it was
    with pytest.raises(ValueError, match="no undamaged checkpoint"):
        run_toy(tmp_path, steps=20, evaluate_every=5, save_every=5, resume=True)


@pytest.mark.parametrize("last", [15, 21])
def test_a_checkpoint_in_the_background_is_there_when_the_next_begins(
    tmp_path: Path, last: int
) -> None:
    """Until then a kill leaves none, and the same steps are taken again."""
    run_toy(tmp_path, steps=last, log_every=1, evaluate_every=5)
    for name in ("checkpoints", "final"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "result.json").unlink()
    saving = {"save_every": 10, "steps": 30, "resume": True}
    if last == 15:
        assert run_toy(tmp_path, async_save=True, **saving).status == "finished"
    else:
        with pytest.raises(ValueError, match="no undamaged checkpoint"):
            run_toy(tmp_path, async_save=True, **saving)


def test_a_run_that_has_saved_nothing_begins_at_0(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert run_toy(tmp_path, steps=20, resume=True).status == "finished"


def test_a_damaged_record_of_the_environment_is_set_aside(tmp_path: Path) -> None:
    run_toy(tmp_path, steps=10)
    (tmp_path / "environment.json").write_text("x")
    run_toy(tmp_path, steps=20, resume=True)
    assert len(json.loads((tmp_path / "environment.json").read_text())) == 1
    assert (tmp_path / "environment.damaged.json").read_text() == "x"


@pytest.mark.parametrize("how", ["as it was", "a value", "a row", "gone"])
def test_altered_metrics_are_noticed(tmp_path: Path, capsys, how: str) -> None:
    """What came after the checkpoint, or broke off in a kill, is no alteration."""
    run_toy(tmp_path, steps=20)
    path = tmp_path / "metrics.jsonl"
    first, *rows = path.read_text().splitlines(keepends=True)
    last = '{"step": 21, "loss": 1.0}\n{"step": 2'
    altered = {"as it was": first, "a value": first.replace('"loss": ', '"loss": 1'), "a row": ""}
    if how == "gone":
        path.unlink()
    else:
        path.write_text("".join([altered[how], *rows, last]))
    train(Toy(), config(steps=30), tmp_path, seed=3, resume=True, report=ProgressBars())
    said = [line for line in capsys.readouterr().err.splitlines() if "metrics.jsonl" in line]
    assert len(said) == (how != "as it was"), said
    assert all("is not as it was written up to step 20" in line for line in said)
