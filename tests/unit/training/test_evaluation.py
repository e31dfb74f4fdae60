"""Metrics are of all rows, however they are cut; what counts as diverged, and what does not."""

import math
import random
from typing import Any

import pytest
import torch

from magneto.training import evaluation
from magneto.training.distributed import World
from magneto.training.evaluation import DivergenceDetector
from magneto.training.task import Scores
from tests.evaluating import measured
from tests.unit.training.toy import Toy, toy_model


def test_sums_and_predictions_of_unequal_batches() -> None:
    """Batches of 25, 7, 19, 1 and 12 rows give what all rows at once give."""
    task, model = Toy(), toy_model()
    x, y = task.set
    answers = model.eval()(x)
    found = measured(task, model)
    assert found["loss"] == pytest.approx((answers - y).square().mean().item(), rel=1e-6)
    assert found["sign"] == ((answers > 0) == (y > 0)).double().mean().item()
    first = measured(task, model, limit=2)
    assert first["loss"] == pytest.approx((answers - y)[:32].square().mean().item(), rel=1e-6)
    assert measured(task, model, limit=99) == found


@pytest.mark.parametrize(("rank", "rows", "batches"), [(0, 25 + 19 + 12, 3), (1, 7 + 1, 2)])
def test_a_rank_scores_every_other_batch_once(
    rank: int, rows: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(Toy):
        def summarise(self, sums, predictions) -> dict[str, float]:
            return {"rows": sums["rows"], "batches": len(predictions)}

    monkeypatch.setattr(evaluation, "all_reduce_sum", lambda value, world: value)
    monkeypatch.setattr(evaluation, "gather_lists", lambda value, world: value[::-1])
    world = World(rank, 2, torch.device("cpu"), "ddp")
    found = evaluation.evaluate(Counted(), toy_model(), world, "fp32")
    assert found.metrics == {"rows": rows, "batches": batches}
    sizes = [len(each["answers"]) for each in found.predictions]
    assert sizes == [[25, 19, 12], [7, 1]][rank], "in the order of the batches"


def test_the_model_is_left_in_the_modes_it_had() -> None:
    modes = []

    class Watched(Toy):
        def score(self, model: Any, batch: Any) -> Scores:
            modes.append((model.dropout.training, torch.is_grad_enabled()))
            return super().score(model, batch)

    model = toy_model().train()
    frozen = model.get_submodule("into").eval()
    measured(Watched(), model)
    assert set(modes) == {(False, False)}
    assert model.training and model.get_submodule("dropout").training and not frozen.training


def test_no_batch_is_an_error() -> None:
    class Empty(Toy):
        def validation_batches(self) -> list:
            return []

    with pytest.raises(ValueError, match="no validation batch"):
        measured(Empty(), toy_model())


def first_complaint(losses: list[float], patience: int = 50) -> int | None:
    detector = DivergenceDetector(patience)
    for step, loss in enumerate(losses, 1):
        if detector.update(loss):
            return step
    return None


def noisy(values: list[float], scale: float = 0.2) -> list[float]:
    chance = random.Random(0)
    return [value + chance.gauss(0, scale) for value in values]


def falling(steps: int) -> list[float]:
    return [2 + 8 * math.exp(-step / 100) for step in range(steps)]


def spiked(losses: list[float], length: int, *starts: int) -> list[float]:
    for start in starts:
        losses[start : start + length] = [12.0] * length
    return losses


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(noisy(falling(2000)), id="a healthy run"),
        pytest.param(noisy([10.0] * 2000), id="a run that never learns"),
        pytest.param(spiked(noisy(falling(1000)), 20, 500), id="a short spike"),
        pytest.param(spiked(falling(2000), 15, *range(200, 2000, 200)),
                     id="short spikes are not added up"),
        pytest.param([10.0] * 10 + [9.8] * 50 + [10.0] * 500, id="noise before any progress"),
        pytest.param([-1.0] * 500, id="a negative loss that stays"),
    ],
)  # fmt: skip
def test_what_is_not_divergence(losses: list[float]) -> None:
    assert first_complaint(losses) is None


@pytest.mark.parametrize(
    ("losses", "patience", "first", "last"),
    [
        pytest.param(noisy(falling(500) + [9.5] * 500), 50, 550, 570, id="jumps and stays"),
        pytest.param([10 * 1.02**step for step in range(500)], 50, 51, 99, id="only grows"),
        pytest.param([1.0, *[100.0] * 10], 3, 4, 4, id="the patience is counted in steps"),
        pytest.param([5.0, 4.0, math.nan], 50, 3, 3, id="nan at once"),
        pytest.param([5.0, 4.0, -math.inf], 50, 3, 3, id="infinite at once"),
    ],
)
def test_what_is_divergence(losses: list[float], patience: int, first: int, last: int) -> None:
    step = first_complaint(losses, patience)
    assert step is not None and first <= step <= last


def test_a_detectors_state_goes_on() -> None:
    losses = noisy(falling(500) + [9.5] * 500)
    before, after = DivergenceDetector(50), DivergenceDetector(50)
    for loss in losses[:530]:
        assert before.update(loss) is None
    after.load_state_dict(before.state_dict())
    assert before == after and before.bad > 0
