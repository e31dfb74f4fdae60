"""Thresholds: what a number means, and that the worst one counts."""

import math

import pytest

from magneto.lab.probe.levels import THRESHOLDS, Measured, Threshold, worst_level


def test_every_threshold_is_of_a_number() -> None:
    assert set(THRESHOLDS) == set(Measured.names()) - {"moved"}


@pytest.mark.parametrize(
    ("worse", "level"),
    [("above", ["sound", "not decided", "not decided", "likely to fail", "likely to fail"]),
     ("below", ["likely to fail", "likely to fail", "not decided", "not decided", "sound"])],
)  # fmt: skip
def test_both_directions(worse: str, level: list[str]) -> None:
    made = (
        Threshold("above", 2.0, 3.0, "") if worse == "above" else Threshold("below", 3.0, 2.0, "")
    )
    assert [made.level(value) for value in (1.0, 2.0, 2.5, 3.0, 4.0)] == level
    assert made.level(math.nan) == "likely to fail", "what is no number is no good sign"
    assert Threshold("above", 2.0, None, "").level(math.inf) == "not decided"
    assert made.level(None) == "sound", "what was not measured says nothing"


def test_the_worst_counts() -> None:
    assert worst_level(Measured()) == "sound"
    limit = THRESHOLDS["imbalance"]
    assert worst_level(Measured(imbalance=limit.undecided)) == "not decided"
    assert worst_level(Measured(imbalance=limit.undecided, rise=9.0)) == "likely to fail"
