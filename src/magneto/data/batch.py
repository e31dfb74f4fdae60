"""Batches are nested dicts, lists, tuples and dataclasses of tensors; these walk through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
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
