"""The ways that the benchmark compares do the same, and what was measured is written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.transducer_loss import NAMES, difference, main
from benchmarks.transducer_ways import GATHERED, PLAIN, SHAPES, SPLIT, inputs, way_of


def gradients(name: str) -> dict[str, torch.Tensor]:
    given, rest = inputs(replace(SHAPES["tiny"], batch=4))
    way_of(name)(given, *rest)
    found = [tensor.grad for tensor in given]
    return {key: x for key, x in zip(NAMES, found, strict=True) if x is not None}


def test_all_ways_give_the_same_gradients() -> None:
    base = gradients(PLAIN)
    assert list(base) == list(NAMES)
    for name in (SPLIT, GATHERED, "100"):
        assert difference(gradients(name), base) < 1e-5
    assert difference({**base, "bias": base["bias"] * 1.01}, base) > 1e-3  # the check can fail


@pytest.mark.slow
def test_a_run_writes_memory_and_time(tmp_path: Path) -> None:
    words = ["--shape", "tiny", "--vocabularies", "300", "--rounds", "1", "--tiles", "256"]
    result = main([*words, "--out", str(tmp_path), "--name", "check"])
    assert result is not None
    assert json.loads((tmp_path / "check.json").read_text())["rows"] == result["rows"]
    assert [row["way"] for row in result["rows"]] == [PLAIN, SPLIT, GATHERED, "256"]
    assert all(row["median_peak_bytes"] > 0 for row in result["rows"])
    assert [row["shape"]["batch"] for row in result["growth"]] == [1, 4, 16, 2, 2]
    assert "| tiles of 256 cells |" in (tmp_path / "check.md").read_text()
