"""The benchmark of the multiway encoder compares equal tokens and writes what it found."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import multiway
from benchmarks.multiway import DESIGNS, contenders, main, padding


def test_a_run_writes_times_padding_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiway, "BATCHES", {"thirds": [(5, 0), (0, 2)]})
    words = ["--width", "16", "--layers", "1", "--rounds", "2", "--out", str(tmp_path)]
    result = main(words)
    assert json.loads((tmp_path / "multiway-cpu.json").read_text()) == result
    rows = result["rows"]
    assert [(row["batch"], row["contender"]) for row in rows] == [
        ("thirds", name) for name in ("one-way", *DESIGNS)
    ]
    assert rows[0]["padding"] == pytest.approx(0.3)
    for row in rows:
        low, high = row["ratio_quartiles"]
        assert low <= row["ratio"] <= high and row["step_median_ms"] > row["median_ms"] > 0
        # Gradients are in the peak.
        assert row["peak_mib"] * 2**20 > 4 * row["parameters"] and row["kept_mib"] > 0
    assert rows[0]["step_ratio"] == rows[0]["ratio"] == 1
    assert "| thirds | 30% | decoupled |" in (tmp_path / "multiway-cpu.md").read_text()


@torch.no_grad()
def test_all_read_the_same_tokens() -> None:
    """With one expert's weights in both places, all give what the one-way encoder gives."""
    sizes = [(4, 0), (4, 3), (0, 5)]
    assert padding(sizes) == pytest.approx(1 - 16 / 21)
    one_way, decoupled, *_ = contenders(sizes, 16, 1)
    state = one_way.model.state_dict()
    for name, tensor in decoupled.model.state_dict().items():
        plain = name.replace("experts.vision.", "").replace("experts.language.", "")
        tensor.copy_(state[plain.replace("final_norm.vision", "final_norm")
                           .replace("final_norm.language", "final_norm")])  # fmt: skip
    assert decoupled.run().item() == pytest.approx(one_way.run().item(), rel=1e-5)
