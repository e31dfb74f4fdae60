"""Walking through nested batches."""

from collections import namedtuple
from dataclasses import dataclass

import torch

from magneto.data.batch import map_tensors, named_tensors, to_device

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
