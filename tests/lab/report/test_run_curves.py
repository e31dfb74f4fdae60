"""Curves of a run from rows that are known."""

import math

from magneto.lab.report.curves import curve_of, draw_run

ROWS = [
    {"step": 10, "loss": 3.0, "gradient_norm": 1.0, "learning_rate": 1e-3},
    {"step": 20, "loss": math.nan, "gradient_norm": 2.0, "learning_rate": 1e-3},
    {"step": 20, "validation_loss": 2.5, "validation_accuracy": 0.5},
]


def test_a_figure_for_each_name_the_loss_first_and_the_loop_last() -> None:
    drawings = draw_run(ROWS, {"loss": 2.9})
    assert [drawing.title for drawing in drawings] == [
        "loss", "accuracy", "learning rate", "gradient norm"
    ]  # fmt: skip
    loss, accuracy, *_ = drawings
    assert loss.series == [0, 1] and accuracy.series == [1]
    assert "baseline" in loss.svg and "baseline" not in accuracy.svg
    texts = [text for hit in loss.hits for _, _, text in hit["points"]]
    assert texts == ["step 10: loss 3", "step 20: loss 2.5"]  # what is not finite is no point


def test_what_was_never_finite_has_no_figure() -> None:
    assert draw_run([{"step": 1, "loss": None}, {"step": 2, "loss": math.inf}], {}) == []
    assert draw_run([], {}) == []


def test_curve() -> None:
    assert curve_of(ROWS, "validation_loss") == [(20, 2.5)]
