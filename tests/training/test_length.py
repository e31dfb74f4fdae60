"""Epochs and warm-up shares become steps."""

import pytest

from magneto.training.config import TrainingConfig
from magneto.training.length import in_steps
from magneto.training.task import Task
from tests.training.toy import Toy, ToyData


class Counted(Toy):
    def examples(self) -> int:
        return 100


def task(kind: type[Task]) -> Task:
    return kind(None, ToyData(), 1)


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
    found = in_steps(TrainingConfig(**given), task(Counted))
    assert (found.steps, found.warmup_steps) == expected


def test_a_task_without_epochs_says_so() -> None:
    with pytest.raises(ValueError, match=r"Toy has no epochs; give training\.steps"):
        in_steps(TrainingConfig(epochs=1), task(Toy))
    with pytest.raises(ValueError, match="epochs must be above 0"):
        TrainingConfig(epochs=0)
    with pytest.raises(ValueError, match="warmup_ratio must be in"):
        TrainingConfig(warmup_ratio=1)
