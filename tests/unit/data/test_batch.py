"""Walking through nested batches, and batches that are made when they are asked for."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

from magneto.data.stream import LazyBatches, map_tensors, named_tensors, to_device

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Rows:
    values: torch.Tensor
    lengths: list[int]


def nested() -> dict:
    one = torch.ones(2)
    return {"rows": Rows(one, [1, 2]), "pair": Pair(one, "name"), "list": [one, (one, None)]}


def test_every_tensor_is_reached_and_the_structure_kept() -> None:
    doubled = map_tensors(nested(), lambda tensor: tensor * 2)
    assert isinstance(doubled["rows"], Rows) and doubled["rows"].lengths == [1, 2]
    assert isinstance(doubled["pair"], Pair) and doubled["pair"].second == "name"
    assert all(tensor.sum() == 4 for tensor in named_tensors(doubled).values())
    moved = to_device(nested(), torch.device("meta"))
    assert {tensor.device.type for tensor in named_tensors(moved).values()} == {"meta"}


def test_names_tell_where_a_tensor_was() -> None:
    names = ["batch.rows.values", "batch.pair.0", "batch.list.0", "batch.list.1.0"]
    assert list(named_tensors(nested())) == names


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
    made.clear()
    first = batches[:2]
    assert len(first) == 2 and made == []
    assert list(first) == ["batch 10", "batch 11"]
