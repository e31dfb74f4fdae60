"""The benchmark of a transducer's decoding times every search on a run, and writes a table."""

import json
from pathlib import Path

import pytest

from benchmarks.transducer_decoding import main
from magneto.cli import main as magneto

pytest.importorskip("jiwer")
pytest.importorskip("soundfile")

SMALL = {
    "model.layers": 1, "model.width": 16, "model.heads": 2, "model.ffn_width": 16,
    "model.predictor_width": 8, "model.joint_width": 8, "data.synthetic.train_utterances": 8,
    "data.synthetic.validation_utterances": 3, "training.steps": 1, "training.evaluate_every": 0,
}  # fmt: skip


@pytest.mark.slow
def test_every_search_has_a_row_for_every_batch(tmp_path: Path) -> None:
    options = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    assert magneto(["train", "transducer/tiny", *options, "--out", str(tmp_path / "run")]) == 0
    words = ["--batches", "1", "2", "--utterances", "3", "--rounds", "2", "--beams", "2"]
    result = main([str(tmp_path / "run"), *words, "--out", str(tmp_path)])
    rows = result["rows"]
    searches = ("greedy", "modified, beam 2", "alignment-length, beam 2")
    assert [(r["search"], r["batch"]) for r in rows] == [(s, b) for s in searches for b in (1, 2)]
    # How many are transcribed at once changes no transcript.
    assert all(rows[n]["wer"] == rows[n + 1]["wer"] for n in (0, 2, 4))
    assert all(low <= row["real_time_factor"] <= high for row in rows for low, high in
               [row["quartiles"]])  # fmt: skip
    assert [row["of_greedy"] for row in rows[:2]] == pytest.approx([1, 1])
    assert json.loads((tmp_path / "transducer-decoding-cpu.json").read_text())["rows"]
    assert (tmp_path / "transducer-decoding-cpu.md").read_text().count("\n| ") == 1 + len(rows)
