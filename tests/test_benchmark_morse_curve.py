"""The benchmark of Morse measures every noise at every speed, and writes a table."""

import json
from pathlib import Path

import pytest

from benchmarks.morse_curve import main
from magneto.cli import main as magneto

pytest.importorskip("jiwer")

SMALL = {
    "model.layers": 1, "model.width": 16, "model.heads": 2, "model.ffn_width": 16,
    "model.front_channels": "2,3", "model.predictor_width": 8, "model.joint_width": 8,
    "data.synthetic.train_utterances": 8, "data.synthetic.validation_utterances": 3,
    "training.steps": 1, "training.evaluate_every": 0,
}  # fmt: skip


def test_every_noise_is_measured_at_every_speed(tmp_path: Path) -> None:
    options = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    assert magneto(["train", "transducer/morse", *options, "--out", str(tmp_path / "run")]) == 0
    words = ["--snrs", "-3", "40", "--speeds", "12", "28", "--texts", "2", "--words", "1", "1"]
    result = main([str(tmp_path / "run"), *words, "--out", str(tmp_path)])
    rows = result["rows"]
    cells = [(12, -3), (12, 40), (28, -3), (28, 40)]
    assert [(row["wpm"], row["snr"]) for row in rows] == cells
    assert len({row["characters"] for row in rows}) == 1  # the same texts everywhere
    assert json.loads((tmp_path / "morse-curve-cpu.json").read_text())["rows"]
    table = (tmp_path / "morse-curve-cpu.md").read_text()
    assert table.count("\n| ") == 3 and "| 12 words per minute | 28 words per minute |" in table
