"""Epochs and warm-up shares become steps."""

import pytest

from magneto.training.config import TrainingConfig, in_steps


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
    found = in_steps(TrainingConfig(**given), 100)
    assert (found.steps, found.warmup_steps) == expected


def test_a_stream_without_epochs_says_so() -> None:
    with pytest.raises(ValueError, match=r"no epochs; give training\.steps"):
        in_steps(TrainingConfig(epochs=1), None)
    with pytest.raises(ValueError, match="epochs must be above 0"):
        TrainingConfig(epochs=0)
    with pytest.raises(ValueError, match="warmup_ratio must be in"):
        TrainingConfig(warmup_ratio=1)
