"""A grid that would mix up runs is refused in one line, before anything runs."""

from pathlib import Path

import pytest

from magneto.analysis.sweep.sweep import PLACEMENT, RATE, SEED, Sweep, open_sweep
from magneto.config import ConfigError

GRID = {PLACEMENT: ["pre", "sub"], RATE: [1e-3], SEED: [1]}


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({PLACEMENT: ["pre", "pre"]}, "model.placement has one value twice: pre"),
        ({"model.layers": ["6", "6", "8"]}, "model.layers has one value twice: 6"),
        ({RATE: [1e-3, 1e-3]}, "training.learning_rate has one value twice: 0.001"),
        ({"data.source": ["a/b", "a_b"]}, "would share the directory source=a_b"),
        ({"model.layers": ["6", "06"]}, "are one run twice: give each value"),
    ],
)
def test_one_run_twice_is_no_second_seed(fields: dict, answer: str, tmp_path: Path) -> None:
    sweep = Sweep("causal-lm/tiny", {}, {**fields, **{k: GRID[k] for k in GRID if k not in fields}})
    with pytest.raises(ConfigError) as refused:
        open_sweep(tmp_path / "grid", sweep)
    assert len(refused.value.lines) == 1 and answer in refused.value.lines[0]
    assert not (tmp_path / "grid").exists()
