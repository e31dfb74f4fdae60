"""Schedules against their closed forms; epochs and warm-up shares become steps."""

import math

import pytest

from magneto.config import ConfigError
from magneto.training.config import TrainingConfig, learning_rate, resolve_steps


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
    ("given", "expected"),
    [
        ({"epochs": 2, "batch_size": 32}, (7, 0)),
        ({"epochs": 0.5, "batch_size": 10, "warmup_ratio": 0.2}, (5, 1)),
        ({"steps": 50, "warmup_ratio": 0.1}, (50, 5)),
        ({"steps": 50, "warmup_steps": 3}, (50, 3)),
        ({"steps": 50, "warmup_steps": 3, "warmup_ratio": 0.0}, (50, 0)),
    ],
    ids=str,
)
def test_lengths(given: dict, expected: tuple[int, int]) -> None:
    found = resolve_steps(TrainingConfig(**given), 100)
    assert (found.steps, found.warmup_steps) == expected


def test_settings_that_need_another_say_so() -> None:
    with pytest.raises(ValueError, match=r"no epochs. Set training\.steps"):
        resolve_steps(TrainingConfig(epochs=1), None)
    with pytest.raises(ConfigError, match="more than keep_checkpoints"):
        TrainingConfig(average_checkpoints=9)
    with pytest.raises(ConfigError, match="set evaluate_every"):
        TrainingConfig(patience=1)
