"""`magneto train --dry-run` says what a training would take, and writes no run."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from magneto.cli import main

WORDS = ["train", "text-classification/tiny", "--data.tokenizer", "bytes", "--model.width", "16",
         "--model.layers", "1", "--model.heads", "2", "--training.device", "cpu", "--dry-run",
         "--training.batch_size", "8", "--training.steps", "50"]  # fmt: skip


def test_control_c_ends_it_at_once(rows: Path, monkeypatch, capsys) -> None:
    """There is no checkpoint to wait for."""
    steps = []

    def step(*given: Any) -> None:
        steps.append(given)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("magneto.training.loop.train_step", step)
    assert main([*WORDS, "--data", str(rows)]) == 130
    err = capsys.readouterr().err
    assert len(steps) == 1 and "magneto: stopped" in err and "checkpoint" not in err


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"{'ab'[i % 2]} {i},{i % 2}\n" for i in range(200)))
    return path


def test_it_says_what_a_training_takes_and_writes_nothing(
    rows: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, "--data", str(rows), "--out", "runs/x", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["batch_size"], found["unit"]) == (50, 8, "texts")
    assert (found["units_per_step"], found["units"]) == (8, 400)
    assert found["peak_bytes"] > found["state_bytes"] == 16 * found["parameters"] > 0
    assert sum(found["parts"].values()) == found["parameters"] and len(found["parts"]) > 1
    assert found["seconds"] == pytest.approx(50 * found["seconds_per_step"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]
    assert main([*WORDS, "--data", str(rows)]) == 0
    words = capsys.readouterr().out
    for each in ("parameters", "50, each of 8 examples", "GB", "no run was written"):
        assert each in words


def test_what_fills_the_memory_is_not_tried(rows: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("magneto.training.model.memory_of", lambda device: 1000)
    assert main([*WORDS, "--data", str(rows)]) == 2
    assert "the cpu here has 1e-06 GB" in capsys.readouterr().err
