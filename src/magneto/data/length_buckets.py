"""Batches of inputs of like length, so that little is padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from magneto.data.batching import ShuffledExamples, epoch_order

# Batches that are sorted by length together: more waste less and shuffle less.
POOL = 50


class LengthBuckets(ShuffledExamples):
    """Examples in random order, except that those of a batch are of like length.

    Each epoch has every example once. Its order is cut in pools of `POOL` batches, a pool is sorted
    by length and cut in batches, and the batches are shuffled; an epoch that begins inside a batch
    fills that one first.

    Args:
        lengths: Of the examples.
        batch_size: Examples of a global batch.
        seed: Of the order.
        make: From an array of example numbers to a batch.
    """

    def __init__(
        self, lengths: np.ndarray, batch_size: int, seed: int, make: Callable[[np.ndarray], Any]
    ) -> None:
        super().__init__(len(lengths), batch_size, seed, make)
        self.lengths = lengths

    def order(self, epoch: int) -> np.ndarray:
        """Return the order of an epoch."""
        numbers = epoch_order(self.count, self.seed, epoch)
        lead = -epoch * self.count % self.batch_size
        first, rest = numbers[:lead], numbers[lead:]
        batches = [
            batch
            for start in range(0, len(rest), POOL * self.batch_size)
            for batch in self._cut(rest[start : start + POOL * self.batch_size])
        ]
        whole = [batch for batch in batches if len(batch) == self.batch_size]
        last = [batch for batch in batches if len(batch) < self.batch_size]
        shuffled = np.random.default_rng([self.seed, epoch, 1]).permutation(len(whole))
        return np.concatenate([first, *(whole[number] for number in shuffled), *last])

    def _cut(self, pool: np.ndarray) -> list[np.ndarray]:
        """Cut a pool in batches of like length; what does not fill one is drawn from anywhere."""
        over = len(pool) % self.batch_size
        ordered = pool[over:][np.argsort(self.lengths[pool[over:]], kind="stable")]
        pieces = [ordered[i : i + self.batch_size] for i in range(0, len(ordered), self.batch_size)]
        return [*pieces, pool[:over]] if over else pieces
