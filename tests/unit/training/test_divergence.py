"""What counts as diverged, and what does not."""

import math
import random

import pytest

from magneto.training.evaluation import DivergenceDetector


def first_complaint(losses: list[float], patience: int = 50) -> int | None:
    detector = DivergenceDetector(0.5, patience)
    for step, loss in enumerate(losses, 1):
        if detector.update(loss):
            return step
    return None


def noisy(values: list[float], scale: float = 0.2) -> list[float]:
    chance = random.Random(0)
    return [value + chance.gauss(0, scale) for value in values]


def falling(steps: int) -> list[float]:
    return [2 + 8 * math.exp(-step / 100) for step in range(steps)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_at_once(value: float) -> None:
    assert first_complaint([5.0, 4.0, value]) == 3


def test_a_healthy_run_is_left_alone() -> None:
    assert first_complaint(noisy(falling(2000))) is None


def test_a_run_that_never_learns_is_not_diverged() -> None:
    assert first_complaint(noisy([10.0] * 2000)) is None


def test_a_short_spike_is_forgiven() -> None:
    losses = noisy(falling(1000))
    losses[500:520] = [12.0] * 20
    assert first_complaint(losses) is None


def test_spikes_are_not_added_up() -> None:
    losses = falling(2000)
    for start in range(200, 2000, 200):
        losses[start : start + 15] = [12.0] * 15
    assert first_complaint(losses) is None


def test_a_loss_that_jumps_and_stays_is_named_after_the_patience() -> None:
    losses = noisy(falling(500) + [9.5] * 500)
    step = first_complaint(losses)
    assert step is not None and 550 <= step <= 570


def test_a_loss_that_only_grows() -> None:
    step = first_complaint([10 * 1.02**step for step in range(500)])
    assert step is not None and step < 100


def test_noise_before_any_progress_is_not_given_back() -> None:
    assert first_complaint([10.0] * 10 + [9.8] * 50 + [10.0] * 500) is None


def test_a_negative_loss_that_stays_is_not_diverged() -> None:
    assert first_complaint([-1.0] * 500) is None


def test_the_patience_is_counted_in_steps() -> None:
    assert first_complaint([1.0, *[100.0] * 10], patience=3) == 4


def test_state_goes_on() -> None:
    losses = noisy(falling(500) + [9.5] * 500)
    before, after = DivergenceDetector(0.5, 50), DivergenceDetector(0.5, 50)
    for loss in losses[:530]:
        assert before.update(loss) is None
    after.load_state_dict(before.state_dict())
    assert before == after
    assert [before.update(loss) for loss in losses[530:]] == [
        after.update(loss) for loss in losses[530:]
    ]
