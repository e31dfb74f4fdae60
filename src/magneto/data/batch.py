"""Batches: nested dicts, lists, tuples and dataclasses of tensors; and sequences of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


def map_tensors(batch: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return the same structure with the function applied to every tensor in it."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: map_tensors(value, function) for key, value in batch.items()}
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{key: map_tensors(value, function) for key, value in parts(batch)})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, function) for value in batch)
    return batch


def to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor to a device, without waiting where the tensor is pinned."""
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def pinned(batch: Any) -> Any:
    """Put every tensor in memory from which a GPU copies while it computes."""
    return map_tensors(batch, Tensor.pin_memory)


def named_tensors(batch: Any, prefix: str = "batch") -> dict[str, Tensor]:
    """List the tensors with names that tell where they were, as "batch.1.length"."""
    if isinstance(batch, Tensor):
        return {prefix: batch}
    named: dict[str, Tensor] = {}
    for key, value in parts(batch):
        named |= named_tensors(value, f"{prefix}.{key}")
    return named


def parts(batch: Any) -> Iterator[tuple[str, Any]]:
    """Give the parts of one level of a batch with their names; nothing for a plain value."""
    if isinstance(batch, dict):
        yield from ((str(key), value) for key, value in batch.items())
    elif is_dataclass(batch) and not isinstance(batch, type):
        yield from ((field.name, getattr(batch, field.name)) for field in fields(batch))
    elif isinstance(batch, list | tuple):
        yield from ((str(index), value) for index, value in enumerate(batch))


# Of all that is drawn for validation (order, hidden tokens): one for all runs, so that they answer
# the same questions.
EVALUATION_SEED = 0


def mixed_order(count: int) -> np.ndarray:
    """Return 0 ... count - 1 in an order that is always the same and does not follow the content.

    The first validation batches are then like all of them, also of data that is sorted by class.
    """
    return np.random.default_rng(EVALUATION_SEED).permutation(count)


def mixed_plans(count: int, batch_size: int) -> list[np.ndarray]:
    """Return the rows 0 ... count - 1 in mixed order, `batch_size` at a time."""
    order = mixed_order(count)
    return [order[start : start + batch_size] for start in range(0, count, batch_size)]


class LazyBatches(Sequence[Any]):
    """A sequence of batches; batch i is made from the i-th plan each time it is asked for.

    A slice, such as the first batches, makes none of them: it is such a sequence again.

    Args:
        plans: What each batch is made of, its row numbers for example.
        make: From a plan to a batch.
    """

    def __init__(self, plans: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self.plans, self.make = plans, make

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return LazyBatches(self.plans[number], self.make)
        return self.make(self.plans[number])
