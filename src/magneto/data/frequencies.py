"""How often tokens and classes occur: a model that knows nothing else is the least to beat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

# Numbers counted at a time: a memory-mapped corpus is never in memory as 64-bit numbers.
PIECE = 1 << 24


def count_numbers(numbers: np.ndarray, size: int) -> np.ndarray:
    """Return how often each of 0 ... size - 1 occurs, (size,)."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(numbers), PIECE):
        counts += np.bincount(numbers[start : start + PIECE], minlength=size)
    return counts


def count_targets(
    batches: Iterable[Mapping[str, Any]], size: int, limit: int | None = None
) -> np.ndarray:
    """Return how often each of `size` tokens is a target of the first batches, (size,).

    Negative targets are not asked for.
    """
    counts = np.zeros(size, np.int64)
    for batch in islice(batches, limit):
        targets = batch["targets"].numpy().reshape(-1)
        counts += count_numbers(targets[targets >= 0], size)
    return counts


def frequency_nats(
    train: np.ndarray, asked: np.ndarray, allowed: np.ndarray | None = None
) -> float:
    """Return the summed cross-entropy, in nats, of answering with the training frequencies.

    Args:
        train: How often each number occurs in training, (size,). One is added to each count.
        asked: How often each is asked for, (size,).
        allowed: True for numbers that can be asked for, (size,); the others have no share.
    """
    counts = (train + 1.0) * (True if allowed is None else allowed)
    there = asked > 0
    return float(-(asked[there] * np.log(counts[there] / counts.sum())).sum())
