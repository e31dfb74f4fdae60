"""Figures of failures, baselines and curves, and their captions."""

import math
from typing import Any

import pytest

from magneto.lab.outcome import Group, Judge, Scored, group_cells
from magneto.lab.report.figures import draw_curves, draw_scores, failure_marks, thinned
from magneto.lab.report.plot import Plot, series_of
from tests.unit.lab.invented import assemble

LEARNED, SPLIT = Group((4.0, 4.2), 0, 0, 0), Group((4.0,), 0, 1, 0)
LOST, SAT = Group((), 0, 2, 0), Group((), 2, 0, 0)


def run(rate: float, score: float | None, seed: int = 1, **more: Any) -> Scored:
    """One run of Sub-LN; without a score it diverged at step 20."""
    known = score is not None
    end = 20.0 if score is None else score
    told: dict[str, Any] = {
        "curve": [[0, 8.0], [10, 8.0 if not known else end], [20, end if known else math.nan]],
        "diverged_at": None if known else 20,
        "reason": "" if known else "the loss is nan",
    }
    return Scored(
        "sub", rate, seed, "finished" if known else "diverged", score=score, loss=score,
        initial_loss=8.0, steps=20, **(told | more),
    )  # fmt: skip


def scores_of(comparison: dict[str, Any]) -> str:
    series = series_of(comparison["placements"], {"sub": "Sub-LN"})
    return draw_scores(comparison, group_cells(comparison), series).svg


def curves_of(comparison: dict[str, Any]) -> list:
    return draw_curves(comparison, series_of(comparison["placements"], {"sub": "Sub-LN"}))


def test_a_failed_rate_is_not_bridged_in_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plot, "finish", lambda plot: plot)
    scores = [4.0, None, 5.0]
    comparison = assemble([run(10.0**i, y) for i, y in enumerate(scores)], Judge("loss", False))
    series = series_of(["sub"], {})
    plot: Any = draw_scores(comparison, group_cells(comparison), series)
    lines = [line for line in plot.axes[-1].lines if line.get_linestyle() != "None"]
    heights = [list(line.get_ydata()) for line in lines if line.get_linestyle() == "-"]
    assert len(heights) == 1 and heights[0][::2] == [4.0, 5.0] and math.isnan(heights[0][1])


def test_marks_say_how_a_rate_failed() -> None:
    marks = failure_marks([1e-3, 1e-2, 1e-1, 1.0], [LEARNED, SPLIT, LOST, SAT])
    assert [(mark.x, mark.symbol) for mark in marks] == [(1e-2, "+"), (1e-1, "x"), (1, "_")]
    assert [mark.text for mark in marks] == [
        "rate 0.01: 1 of 2 diverged", "rate 0.1: diverged", "rate 1: did not learn",
    ]  # fmt: skip


def test_the_baseline_is_drawn_or_named_at_the_frame() -> None:
    cells = [run(1e-3, 4.0), run(1e-2, 5.0)]
    assert "trivial baseline 6<" in scores_of(assemble(cells, Judge("loss", False, 6.0)))
    far = scores_of(assemble(cells, Judge("loss", False, 60.0)))
    assert "trivial baseline 60, above the frame" in far
    assert "initial loss 8" in scores_of(assemble(cells, Judge("loss", False)))
    accuracy = [run(1e-3, 0.5), run(1e-2, 0.6)]
    assert "trivial baseline 0.1, below" in scores_of(
        assemble(accuracy, Judge("accuracy", True, 0.1))
    )


def test_what_diverged_stands_above_the_curves() -> None:
    comparison = assemble([run(1e-3, 4.0), run(1e-3, None, 2)], Judge("loss", False))
    (panel,) = curves_of(comparison)
    curve, lost = sorted(panel.hits, key=lambda hit: "diverged" in hit["points"][0][2])
    assert lost["points"][0][2] == "seed 2: diverged at step 20"
    assert lost["points"][0][1] < min(y for _, y, _ in curve["points"])
    assert "× diverged" in panel.svg
    (whole,) = curves_of(assemble([run(1e-3, 4.0)], Judge("loss", False)))
    assert "diverged" not in whole.svg
    worse = run(1e-3, None, diverged_at=None, reason="the loss is 13 at the end")
    (panel,) = curves_of(assemble([worse], Judge("loss", False)))
    assert "seed 1: the loss is 13" in str(panel.hits)


def test_a_loss_that_is_not_finite_breaks_the_line() -> None:
    curve = [[i, math.nan if i == 333 else 4.0] for i in range(1000)]
    steps, losses = thinned(curve)
    assert len(steps) < 300 and steps[-1] == 999
    assert [step for step, loss in zip(steps, losses, strict=True) if math.isnan(loss)] == [333]
