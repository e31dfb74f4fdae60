"""How the cells of a grid are put together, and how a report writes its numbers."""

import csv
import io
import math

import pytest

from magneto.lab.sweep.grid import (
    Group,
    decimals_for,
    finite,
    group_cells,
    plus_minus,
    rate_text,
    write_csv,
)


def cell(placement: str, rate: float, seed: int, status: str, score: float | None) -> dict:
    return {"placement": placement, "learning_rate": rate, "seed": seed, "status": status,
            "score": score}  # fmt: skip


COMPARISON = {
    "recipe": "causal-lm/tiny",
    "metric": "loss",
    "placements": ["sub", "pre"],
    "learning_rates": [1e-3],
    "cells": [
        cell("sub", 1e-3, 1, "finished", 3.0),
        cell("sub", 1e-3, 2, "finished", 5.0),
        cell("sub", 1e-3, 3, "diverged", 9.0),
        cell("sub", 1e-3, 4, "missing", None),
        cell("sub", 1e-3, 5, "did not learn", 8.0),
    ],
}


def test_cells_of_one_placement_and_rate_are_one_group() -> None:
    found = group_cells(COMPARISON)
    assert found["sub", 1e-3] == Group((3.0, 5.0), finished=2, stuck=1, diverged=1, missing=1)
    assert found["sub", 1e-3].mean == 4 and found["sub", 1e-3].seeds == 4
    assert found["sub", 1e-3].interval == pytest.approx(12.7062047)  # Student's t, two seeds
    empty = found["pre", 1e-3]
    assert (empty.mean, empty.interval, empty.seeds) == (None, None, 0)


def test_one_seed_has_no_interval() -> None:
    assert Group((3.0,), 1, 0, 0, 0).interval is None


def test_rows_of_csv_are_the_cells() -> None:
    rows = list(csv.DictReader(io.StringIO(write_csv(COMPARISON))))
    assert [row["seed"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[0]["recipe"] == "causal-lm/tiny" and rows[3]["score"] == ""


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1e-3, "0.001"), (3.2e-4, "0.00032"), (0.03, "0.03"), (1e-5, "1e-05"), (1, "1"), (0, "0"),
     (None, "–")],
)  # fmt: skip
def test_rates_are_written_as_people_do(rate: float | None, text: str) -> None:
    assert rate_text(rate) == text


def test_numbers_have_about_four_figures() -> None:
    assert [decimals_for([value]) for value in (4.2, 0.042, 123.4, 1e6)] == [3, 5, 1, 0]
    assert decimals_for([]) == decimals_for([None, 0.0]) == 3
    assert plus_minus(4.12345, 0.01, 3) == "4.123 ± 0.010"
    assert plus_minus(4.12345, math.nan, 3) == "4.123" and plus_minus(None, 1.0, 3) == "–"
    assert [finite(v) for v in (None, math.inf, math.nan, 2)] == [None, None, None, 2.0]
