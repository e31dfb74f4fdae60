"""What a run is resumed from, and what is never written over; more is in test_loop."""

import json
import shutil
from pathlib import Path

import pytest

from magneto.training.checkpoint import list_checkpoints
from magneto.weights import find_weights
from tests.training.toy import run_toy


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


def test_a_run_that_has_saved_nothing_begins_at_0(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert run_toy(tmp_path, steps=20, resume=True).status == "finished"


def test_a_damaged_record_of_the_environment_is_set_aside(tmp_path: Path) -> None:
    run_toy(tmp_path, steps=10)
    (tmp_path / "environment.json").write_text("x")
    run_toy(tmp_path, steps=20, resume=True)
    assert len(json.loads((tmp_path / "environment.json").read_text())) == 1
    assert (tmp_path / "environment.damaged.json").read_text() == "x"
