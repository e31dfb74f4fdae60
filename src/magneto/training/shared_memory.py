"""Batches in memory that two processes share: one open file for all tensors of a batch.

The file has no name, so nothing is left behind however a process ends, and it takes none of
/dev/shm, which containers keep small. One open file a batch stays far below the limit on them.
"""

from __future__ import annotations

import math
import mmap
import os
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from magneto.training.batch import map_tensors

# Bytes to whose multiples tensors are laid, for every type and for wide loads.
ALIGNMENT = 64


def share(batch: Any) -> tuple[Any, int]:
    """Copy a batch's tensors into shared memory.

    Returns:
        The batch with empty tensors in their place (on torch's "meta" device), and the descriptor
        of the file with their values.
    """
    empty = map_tensors(batch, lambda tensor: torch.empty_like(tensor, device="meta"))
    size = 0

    def measure(tensor: Tensor) -> Tensor:
        nonlocal size
        size += _room(tensor)
        return tensor

    map_tensors(empty, measure)
    file = _nameless_file()
    os.ftruncate(file, max(size, 1))
    places = _Places(file)
    map_tensors(
        batch, lambda tensor: places.next(torch.empty_like(tensor, device="meta")).copy_(tensor)
    )
    return empty, file


def attach(empty: Any, file: int) -> Any:
    """Return the batch that `share` gave, on the same memory; closes the descriptor."""
    try:
        places = _Places(file)
    finally:
        os.close(file)
    return map_tensors(empty, places.next)


class _Places:
    """Gives tensors on a shared file, one after the other."""

    def __init__(self, file: int) -> None:
        self._bytes = torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
        self._start = 0

    def next(self, empty: Tensor) -> Tensor:
        """Return the next tensor, of the type, shape and strides of an empty one."""
        start, self._start = self._start, self._start + _room(empty)
        values = self._bytes[start : start + empty.numel() * empty.element_size()]
        return values.view(empty.dtype).as_strided(empty.shape, empty.stride())


def _room(tensor: Tensor) -> int:
    """Return the bytes that a tensor takes, up to where the next one may begin."""
    return math.ceil(tensor.numel() * tensor.element_size() / ALIGNMENT) * ALIGNMENT


def _nameless_file() -> int:
    """Open a file in memory; on systems without such files, a temporary one."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("magneto-batch")
    with TemporaryFile() as file:
        return os.dup(file.fileno())
