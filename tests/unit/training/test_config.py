"""Schedules against their closed forms; epochs and warm-up shares become steps."""

import math

import pytest

from magneto.config import ConfigError
from magneto.training.config import TrainingConfig, learning_rate, resolve_steps

COSINE = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 20 / 90))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schedule": "constant", "warmup_start": 0.5}, {0: 0.5, 5: 0.75, 10: 1.0, 100: 1.0}),
        ({"schedule": "linear", "power": 2.0}, {10: 1.0, 55: 0.5, 100: 0.0}),
        ({"schedule": "polynomial", "power": 2.0}, {55: 0.25}),
        ({"schedule": "polynomial", "final_learning_rate": 0.2}, {55: 0.6, 100: 0.2}),
        ({"schedule": "cosine", "final_learning_rate": 0.1},
         {10: 1.0, 30: COSINE, 55: 0.55, 100: 0.1}),
        ({"schedule": "inverse_sqrt"}, {10: 1.0, 40: 0.5}),
        ({"schedule": "inverse_sqrt", "warmup_steps": 0}, {0: 1.0, 1: 1.0, 4: 0.5}),
    ],
    ids=str,
)  # fmt: skip
def test_schedules(changes: dict, expected: dict[int, float]) -> None:
    settings = TrainingConfig(steps=100, learning_rate=1.0, **{"warmup_steps": 10, **changes})
    assert {step: learning_rate(settings, step) for step in expected} == pytest.approx(expected)


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
    with pytest.raises(ValueError, match="learning_rate is not set"):
        learning_rate(TrainingConfig(), 0)
    with pytest.raises(ValueError, match=r"no epochs. Set training\.steps"):
        resolve_steps(TrainingConfig(epochs=1), None)
    with pytest.raises(ConfigError, match="above keep_checkpoints"):
        TrainingConfig(average_checkpoints=9)
    TrainingConfig(average_checkpoints=9, average_by="best")  # they have a folder of their own
    with pytest.raises(ConfigError, match="set save_every above 0"):
        TrainingConfig(average_checkpoints=2)
    with pytest.raises(ConfigError, match="set evaluate_every"):
        TrainingConfig(patience=1)
