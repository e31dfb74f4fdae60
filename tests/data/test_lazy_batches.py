"""Batches are made when they are asked for, each as often as it is."""

import pytest

from magneto.data.batch import LazyBatches


def test_a_batch_is_made_when_it_is_asked_for() -> None:
    made: list[int] = []

    def make(number: int) -> str:
        made.append(number)
        return f"batch {number}"

    batches = LazyBatches([10, 11, 12], make)
    assert len(batches) == 3 and made == []
    assert batches[2] == "batch 12" and made == [12]
    assert list(batches) == ["batch 10", "batch 11", "batch 12"]
    with pytest.raises(IndexError):
        batches[3]
