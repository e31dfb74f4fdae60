"""Scaling curves: slopes are right, and points are of the product's own step."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling
from benchmarks.bench_cases import Case
from benchmarks.bench_tables import scaling_markdown
from benchmarks.scaling import model

LEAST: Case = model(1, 8, 1, 1, 8, 300)


def test_memory_is_that_of_weights_gradients_optimizer_and_activations(
    capsys: pytest.CaptureFixture,
) -> None:
    found = []
    for case in (model(4, 32, 2, 1, 8, 300), model(8, 32, 2, 1, 8, 300)):
        scaling.work("memory", asdict(case), time.time())
        found.append(json.loads(capsys.readouterr().out)["peak_bytes"])
    # A layer has 12 x 32 x 32 weights; with gradients and the optimizer's two that is times four.
    assert 4 * 4 * 4 * 12 * 32 * 32 < found[1] - found[0] < 1.5 * 4 * 4 * 4 * 12 * 32 * 32


def test_a_run_writes_points_and_slopes_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of points that were made up: time as the depth, memory constant."""

    def spawn(case: Any, ranks: int, way: str) -> dict[str, float]:
        size = case.layers * ranks
        if way == "memory":
            return {"peak_bytes": 40}
        return {"seconds": size, "slowest": 2 * size, "start_up": 3.0}

    monkeypatch.setattr(scaling, "spawn", spawn)
    words = ["--curves", "depth", "ranks", "--commit", "abc", "--out", str(tmp_path)]
    measured = scaling.main(words)
    depth, ranks = measured["curves"]["depth"], measured["curves"]["ranks"]
    assert depth["slopes"] == pytest.approx({"seconds": 1, "peak_bytes": 0, "start_up": 0})
    assert {point["peak_bytes"] for point in depth["points"]} == {40}
    assert [point["size"] for point in ranks["points"]] == [1, 2, 4]
    assert ranks["slopes"]["seconds"] == pytest.approx(1)
    page = (tmp_path / "scaling-cpu.md").read_text()
    assert page == scaling_markdown(measured) and "| depth | 1.00 | 1.00 | 1 | 0.00 | 1 |" in page

    monkeypatch.setattr(scaling, "spawn", lambda case, ranks, way: pytest.fail("measured again"))
    assert scaling.main(words)["curves"] == json.loads(json.dumps(measured["curves"]))


@pytest.mark.distributed
def test_ranks_take_their_steps_together() -> None:
    assert scaling.spawn(LEAST, 2, "time")["seconds"] > 0
    assert scaling.spawn(LEAST, 2, "memory")["peak_bytes"] > 0
