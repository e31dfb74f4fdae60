"""Outcomes of runs and summaries of placements, on grids with known conclusions."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magneto.files import write_json
from magneto.lab.answer import answer
from magneto.lab.grid import PLACEMENT, RATE, SEED, Cell, cell_directory
from magneto.lab.outcome import Judge, Scored, outcome, score_cell, summarise, verdict
from magneto.training.logging import TrainingResult
from tests.unit.lab.invented import BASELINE, cell, cells


def ended(loss: float | None, curve: float = 3.0) -> dict:
    return {"status": "finished", "reason": "", "metrics": {"loss": loss}, "curve": [[1, curve]]}


@pytest.mark.parametrize(
    ("loss", "first", "baseline", "expected"),
    [
        (3.0, 8.0, 7.5, "finished"),
        (3.0, None, None, "finished"),
        (12.1, 8.0, 7.5, "diverged"),
        (12.0, 8.0, None, "did not learn"),
        (8.0, 8.0, 9.0, "did not learn"),
        (float("nan"), None, None, "diverged"),
        (None, 8.0, 7.5, "diverged"),
        (7.5, 8.0, 7.5, "did not learn"),
        (7.36, 8.0, 7.5, "did not learn"),
        (7.34, 8.0, 7.5, "finished"),
        (7.34, 8.0, None, "finished"),
    ],
)
def test_what_became_of_a_run(
    loss: float | None, first: float | None, baseline: float | None, expected: str
) -> None:
    """A loss must be 2 % below the baseline, or below its initial value without a baseline.

    A loss of 1.5 times its initial value has diverged.
    """
    found, reason = verdict(ended(loss), Judge("loss", False, baseline), first)
    assert found == expected
    assert bool(reason) == (expected != "finished")


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_good_score_with_an_infinite_loss_has_diverged(loss: float | None) -> None:
    found = ended(loss) | {"metrics": {"accuracy": 0.9, "loss": loss}}
    assert verdict(found, Judge("accuracy", True, 0.1), 8.0)[0] == "diverged"
    assert verdict(found | {"metrics": {"accuracy": 0.9}}, Judge("accuracy", True, 0.1), 8.0)[
        0
    ] == ("finished")


@pytest.mark.parametrize(
    ("score", "baseline", "learned"),
    [(0.52, 0.5, True), (0.505, 0.5, False), (0.03, 0.0, True), (0.01, 0.0, False),
     (4.0, 1.5, True), (3.0, 1.5, False)],
)  # fmt: skip
def test_where_higher_is_better_the_margin_is_of_what_is_left(
    score: float, baseline: float, learned: bool
) -> None:
    assert Judge("accuracy", True, baseline).beats_baseline(score) == learned


@pytest.mark.parametrize(
    ("last", "validation", "status"),
    [(0.1, 2.0, "finished"), (2.0, 0.5, "finished"), (2.0, 2.0, "diverged"),
     (0.9, 2.0, "did not learn"), (0.1, math.nan, "diverged")],
)  # fmt: skip
def test_overfitting_is_no_divergence(last: float, validation: float, status: str) -> None:
    """This holds for classifiers; if the loss is the score, only that must fall."""
    found = ended(validation, last)
    found["metrics"]["accuracy"] = 0.8
    assert verdict(found, Judge("accuracy", True, 0.5), 0.7)[0] == status
    alone = verdict(found, Judge("loss", False), 0.7)[0]
    assert alone == ("finished" if validation < 0.7 else "diverged")


@pytest.mark.parametrize(
    ("accuracy", "loss", "ended_as"),
    [(0.2, 2.9, "finished"), (0.2, 2.95, "did not learn"), (0.11, 2.9, "did not learn")],
)
def test_a_ladder_judges_the_loss_too(accuracy: float, loss: float, ended_as: str) -> None:
    """A classifier that always predicts a common class has an accuracy and no loss to show."""
    task: Any = SimpleNamespace(primary_metric="accuracy", higher_is_better=True,
                                baseline=lambda limit: {"accuracy": 0.1, "loss": 3.0})  # fmt: skip
    found = ended(loss, loss)
    found["metrics"]["accuracy"] = accuracy
    assert verdict(found, Judge.of_ladder(task, 1), 3.5)[0] == ended_as
    compared = "finished" if accuracy == 0.2 else "did not learn"
    assert verdict(found, Judge.of(task, 1), 3.5)[0] == compared


def test_sensitivity_is_capped_at_the_loss_at_initialisation() -> None:
    """A run that diverged before its first logged row does not raise the others' cap."""
    table = cells("sub", {1e-3: [4.0], 1e-2: [None]}, first=6.0)
    overfit = [replace(cell, loss=9.0) if cell.score else cell for cell in table]
    assert summarise(overfit, "sub", False).sensitivity == 0
    two = cells("sub", {1e-3: [4.0, 3.0], 1e-2: [None, 4.0]}, first=6.0)
    assert summarise(two, "sub", False).sensitivity == pytest.approx((1 + 0.5) / 2), "of each seed"
    blown = [c if c.score else Scored("sub", 1e-2, 0, "diverged", initial_loss=6.0) for c in table]
    assert summarise(blown, "sub", False).sensitivity == pytest.approx((0 + 2.0) / 2)


def test_rows_are_judged_as_stable_by_the_same_seeds() -> None:
    """Additional seeds near one row's best rate fail there; the other row has no such seeds."""
    table: dict[float, list[float | None]] = {1e-3: [4.0], 1e-2: [3.5], 1e-1: [None]}
    more = [cell("sub", 1e-2, seed, score) for seed, score in enumerate([3.4, BASELINE, 3.6], 1)]
    grid = [*cells("pre", table), *cells("sub", table), *more]
    pre, sub = (summarise(grid, name, False) for name in ("pre", "sub"))
    apart = [*cells("pre", table), *more]  # rows that have no seed in common
    assert summarise(apart, "sub", False).next_rate is None
    assert pre.largest_stable_rate == sub.largest_stable_rate == 1e-2
    assert pre.stable_seeds == sub.stable_seeds == [0]
    assert (sub.next_rate, sub.failed_there, sub.others_failed) == (1e-1, (1, 1), (1, 3))
    text = " ".join(answer([pre, sub], False, "loss"))
    assert "Largest stable learning rates (one seed at every rate)" in text
    assert "at or below the largest stable rate: 1 of 3 for Sub-LN." in text
    assert "too few to compare" in text
    # A seed that happens to be at all of one row's rates is not at all of the other's.
    whole = [*cells("pre", table), *cells("sub", {rate: [3.0, None] for rate in table})]
    assert summarise(whole, "sub", False).largest_stable_rate == 1e-1


def test_a_rate_above_one_that_failed_is_not_stable() -> None:
    sub = cells("sub", {1e-3: [4.0, 4.1], 1e-2: [BASELINE, 3.9], 1e-1: [3.0, 3.1]})
    found = summarise(sub, "sub", False)
    assert (found.largest_stable_rate, found.next_rate, found.failed_there) == (1e-3, 1e-2, (1, 2))
    assert found.best_learning_rate == 1e-1 and found.best_beyond_stable
    said = "Sub-LN has its best score at 0.1, above its largest stable rate."
    assert said in answer([found], False, "loss")


def test_a_rate_with_a_missing_run_is_neither_best_nor_stable() -> None:
    found = summarise(cells("sub", {1e-3: [4.0, 4.1], 1e-2: [3.0, "missing"]}), "sub", False)
    assert found.best_learning_rate == found.largest_stable_rate == 1e-3
    text = " ".join(answer([found], False, "loss"))
    assert "Sub-LN 0.001 (results missing at 0.01)" in text and "has its best score at" not in text


def test_the_curve_is_of_validation_where_its_loss_is_the_score(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": 4.0 - n} for n in (1, 2)]
    rows += [{"step": n, "validation_loss": 4.5 - n} for n in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = TrainingResult("finished", 2, {"loss": 2.4, "accuracy": 0.9}, {}, None, "", 1.0)
    place = Cell({PLACEMENT: "sub", RATE: 1e-3, SEED: 1})
    write_json(cell_directory(tmp_path, place) / "outcome.json", outcome(result, tmp_path))
    for metric, kind, curve in (("loss", "validation", [[1, 3.5], [2, 2.5]]),
                                ("accuracy", "training", [[1, 3.0], [2, 2.0]])):  # fmt: skip
        found = score_cell(tmp_path, place, Judge(metric, metric == "accuracy"))
        assert (found.curve_of, found.curve, found.initial_loss) == (kind, curve, 3.0)
        assert found.loss == 2.4
