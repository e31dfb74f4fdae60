"""Batches through shared memory are the batches."""

from typing import Any

import torch

from magneto.training.shared_memory import attach, share
from tests.training.test_batch import nested


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        equal = first.dtype == second.dtype and first.stride() == second.stride()
        return equal and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def test_shared_memory_keeps_structure_types_and_strides() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    batch = {
        **nested(), "image": image, "empty": torch.zeros(0, 3), "one": torch.tensor(2.0),
        "flags": torch.tensor([True, False, True]), "half": torch.arange(5).bfloat16(),
    }  # fmt: skip
    found = attach(*share(batch))
    rows_found, rows_given = found.pop("rows"), batch.pop("rows")
    assert same(found, batch)
    assert same(rows_found.values, rows_given.values) and rows_found.lengths == rows_given.lengths
