"""Schedules against their closed forms."""

import math

import pytest

from magneto.training.config import TrainingConfig, learning_rate


def rates(**changes) -> list[float]:
    settings = TrainingConfig(steps=100, learning_rate=1.0, warmup_steps=10, **changes)
    return [learning_rate(settings, step) for step in range(101)]


def test_warmup_from_a_value() -> None:
    found = rates(schedule="constant", warmup_start=0.5)
    assert found[0] == 0.5 and found[5] == pytest.approx(0.75) and found[10:] == [1.0] * 91


def test_polynomial_and_linear() -> None:
    assert rates(schedule="linear")[55] == pytest.approx(0.5)
    assert rates(schedule="polynomial")[55] == pytest.approx(0.5)
    assert rates(schedule="polynomial", power=2.0)[55] == pytest.approx(0.25)
    assert rates(schedule="polynomial", final_learning_rate=0.2)[-1] == pytest.approx(0.2)


def test_cosine_with_a_floor() -> None:
    found = rates(schedule="cosine", final_learning_rate=0.1)
    assert found[10] == pytest.approx(1) and found[-1] == pytest.approx(0.1)
    assert found[55] == pytest.approx(0.55)
    assert found[30] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 20 / 90)))


def test_inverse_square_root() -> None:
    found = rates(schedule="inverse_sqrt")
    assert found[10] == 1 and found[40] == pytest.approx(0.5)


def test_no_rate_is_an_error() -> None:
    with pytest.raises(ValueError, match="learning_rate is not set"):
        learning_rate(TrainingConfig(), 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps must be 1"),
        ({"learning_rate": -1.0}, "above 0"),
        ({"ema_decay": 1.0}, "between 0 and 1"),
        ({"average_checkpoints": 9}, "more than keep_checkpoints"),
    ],
)
def test_impossible_settings(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingConfig(**changes)
