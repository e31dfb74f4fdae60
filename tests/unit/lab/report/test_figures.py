"""Figures of failures, baselines and curves, and their captions."""

import math
from dataclasses import replace
from typing import Any

import pytest

from magneto.lab.outcome import Group, Judge, group_cells
from magneto.lab.report import figures
from magneto.lab.report.plot import Plot, series_of
from tests.unit.lab.invented import assemble, cell, cells
from tests.unit.lab.report.test_report import comparison

LEARNED, SPLIT = Group((4.0, 4.2), 0, 0, 0), Group((4.0,), 0, 1, 0)
LOST, SAT = Group((), 0, 2, 0), Group((), 2, 0, 0)


def scores_of(comparison: dict[str, Any]) -> str:
    series = series_of(comparison["placements"], {"sub": "Sub-LN"})
    return figures.draw_scores(comparison, group_cells(comparison), series).svg


def curves_of(comparison: dict[str, Any]) -> list:
    return figures.draw_curves(comparison, series_of(comparison["placements"], {"sub": "Sub-LN"}))


def test_a_failed_rate_is_not_bridged_in_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plot, "finish", lambda plot: plot)
    table = {1.0: [4.0, 4.0], 10.0: [None, 4.5], 100.0: [5.0, 5.0]}
    comparison = assemble(cells("sub", table), Judge("loss", False))
    series = series_of(["sub"], {})
    plot: Any = figures.draw_scores(comparison, group_cells(comparison), series)
    lines = plot.axes[-1].lines
    heights = [list(line.get_ydata()) for line in lines if line.get_linestyle() == "-"]
    assert len(heights) == 1 and heights[0][::2] == [4.0, 5.0] and math.isnan(heights[0][1])
    (some,) = (list(line.get_ydata()) for line in lines if line.get_fillstyle() == "none")
    assert some[1] == 4.5 and math.isnan(some[0]) and math.isnan(some[2])


def test_updates_are_relative_to_the_smallest_depth() -> None:
    updates = [
        {"placement": "sub", "layers": layers, "seed": seed, "reading": reading,
         "optimizer": optimizer, "value": value * (1.01 if seed and layers == 24 else 1)}
        for reading, optimizer, last in (("label", "sgd", 8.0), ("label", "adam", 9.0),
                                         ("output", "sgd", 9.0))
        for layers, value in ((6, 2.0), (24, last)) for seed in (0, 1)
    ]  # fmt: skip
    measured = {"depths": [6, 24], "updates": updates, "bounds": {}}
    (hits,) = figures.draw_updates(measured, series_of(["sub"], {}), "label").hits
    # Ratios of 4 and 4.04: exp(mean of logs -+ 12.706 x log(1.01) / 2).
    assert "'6 layers: x 1.00" in str(hits)
    assert "'24 layers: x 4.02 (95 %: 3.77 to 4.28)" in str(hits)


def test_numbers_are_drawn_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plot, "finish", lambda plot: plot)
    known = comparison()
    series = series_of(known["placements"], {})
    plot: Any = figures.draw_scores(known, group_cells(known), series)
    strip, main = plot.axes
    assert main.get_xlim() == pytest.approx((1e-3 / 1.6, 1.6)) and main.get_xscale() == "log"
    # From 5.02 to the baseline, 7.8, and a margin of 7 %.
    assert main.get_ylim() == pytest.approx((5.02 - 0.07 * 2.78, 7.8 + 0.07 * 2.78))
    places = [line.get_xdata()[0] for line in main.lines if line.get_linestyle() != "None"]
    factors = [4 ** (0.05 * number) for number in (-1.5, -0.5, 0.5, 1.5)]
    assert places[:-1] == pytest.approx([1e-3 * factor for factor in factors]), "side by side"
    assert main.lines[0].get_ydata()[0] == pytest.approx(6.42 - 12.7062 * 0.01), "a 95 % interval"
    marks = [(line.get_xdata()[0], line.get_ydata()[0], line.get_marker()) for line in strip.lines]
    assert marks == [(-0.03, 0, "v"), (1e-2, 0, "+"), (1.0, 0, "x"),
                     (-0.03, 1, "<"), (1e-3, 1, "_"), (1.0, 1, "x")]  # fmt: skip
    assert strip.get_ylim() == (1.6, -0.6), "the first row is on top"
    panels: list[Any] = figures.draw_curves(known, series)
    # The lowest loss is 5.01, and the median of the first losses 7.896.
    top = 7.896 + 0.35 * (7.896 - 5.01)
    for panel in panels:
        assert panel.main.get_ylim() == pytest.approx((5.01 - 0.05 * (top - 5.01), top))
        assert panel.main.get_xlim() == pytest.approx((0, 210 * 1.02))
    assert [len(panel.main.lines) for panel in panels] == [8, 8, 6]
    assert panels[0]._hover[0][2][0] == (10.0, pytest.approx(7.921), "step 10: loss 7.921")
    layers: Any = figures.draw_activations(known["measured"], series)
    assert layers._hover[1][2][2] == (3.0, 3.0, "layer 3: RMS 3")
    assert list(layers.main.lines[1].get_xdata()[:3]) == [1, 2, 3]
    updates: Any = figures.draw_updates(known["measured"], series, "label")
    bounds = [line.get_ydata() for line in updates.main.lines if line.get_linestyle() == "--"]
    assert [*bounds[0], *bounds[1]] == pytest.approx([1, 2, 4, 1, 0.9375, 0.875])


def test_marks_say_how_a_rate_failed() -> None:
    marks = figures.failure_marks([1e-3, 1e-2, 1e-1, 1.0], [LEARNED, SPLIT, LOST, SAT])
    assert [(mark.x, mark.symbol) for mark in marks] == [(1e-2, "+"), (1e-1, "x"), (1, "_")]
    assert [mark.text for mark in marks] == [
        "rate 0.01: 1 of 2 diverged", "rate 0.1: diverged", "rate 1: did not learn",
    ]  # fmt: skip


def test_the_baseline_is_drawn_or_named_at_the_frame() -> None:
    losses = cells("sub", {1e-3: [4.0], 1e-2: [5.0]})
    assert "trivial baseline 6<" in scores_of(assemble(losses, Judge("loss", False, 6.0)))
    far = scores_of(assemble(losses, Judge("loss", False, 60.0)))
    assert "trivial baseline 60, above the frame" in far
    other = cell("sub", 1e-1, 0, 4.5, first=5.5)  # the median of three
    assert "initial loss 8" in scores_of(assemble([*losses, other], Judge("loss", False)))
    accuracy = cells("sub", {1e-3: [0.5], 1e-2: [0.6]})
    assert "initial loss" not in scores_of(assemble(accuracy, Judge("accuracy", True)))
    stuck = assemble(cells("sub", {1e-3: [7.9]}), Judge("loss", False, 7.5))
    assert "no run learned" in scores_of(stuck)
    assert "trivial baseline 0.1, below" in scores_of(
        assemble(accuracy, Judge("accuracy", True, 0.1))
    )


def test_what_diverged_stands_above_the_curves() -> None:
    comparison = assemble(cells("sub", {1e-3: [4.0, None]}), Judge("loss", False))
    (panel,) = curves_of(comparison)
    curve, lost = sorted(panel.hits, key=lambda hit: "diverged" in hit["points"][0][2])
    assert lost["points"][0][2] == "seed 1: diverged at step 67"
    assert lost["points"][0][1] < min(y for _, y, _ in curve["points"])
    assert "× diverged" in panel.svg
    (whole,) = curves_of(assemble([cell("sub", 1e-3, 1, 4.0)], Judge("loss", False)))
    assert "diverged" not in whole.svg
    worse = replace(cell("sub", 1e-3, 1, None), diverged_at=None, reason="the loss is 13")
    (panel,) = curves_of(assemble([worse], Judge("loss", False)))
    assert "seed 1: the loss is 13" in str(panel.hits)


def test_a_loss_that_is_not_finite_breaks_the_line() -> None:
    curve = [[i, math.nan if i == 333 else 4.0] for i in range(1000)]
    steps, losses = figures.thinned(curve)
    assert len(steps) < 300 and steps[-1] == 999
    assert [step for step, loss in zip(steps, losses, strict=True) if math.isnan(loss)] == [333]
