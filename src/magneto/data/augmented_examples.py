"""Shuffled examples that are made with randomness, which is a function of (seed, draw, number)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magneto.data.batching import ShuffledExamples, epoch_order, listed


class AugmentedExamples(ShuffledExamples):
    """Shuffled examples, each given out with the number of its draw.

    What is drawn at random for an example should be a function of the seed, its draw and its
    number: then it is another one in every epoch, and the same whatever the number of workers and
    ranks, and in a resumed run. The state is one integer.

    Args:
        count: Examples there are.
        batch_size: Examples of a global batch.
        seed: Of the order.
        make: From an array of example numbers and one of their draws to a batch. A draw is the
            epoch where an example comes once in it, else the epoch's and the repeat's number.
        repeats: Times that an example comes in one global batch ("repeated augmentation", arXiv
            1901.09335). An epoch is as long as before, so that it has a share of the examples.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int,
        make: Callable[[np.ndarray, np.ndarray], Any],
        repeats: int = 1,
    ) -> None:
        super().__init__(count, batch_size, seed, lambda both: make(both % count, both // count))
        self.repeats = repeats

    def order(self, epoch: int) -> np.ndarray:
        """Return the order of an epoch: draw * count + number."""
        numbers = epoch_order(self.count, self.seed, epoch)[: -(-self.count // self.repeats)]
        # Repeats lie apart, so that neighbours, which are mixed with each other, are others.
        chunk = max(1, self.batch_size // self.repeats)
        parts = []
        for start in range(0, len(numbers), chunk):
            for repeat in range(self.repeats):
                draw = epoch * self.repeats + repeat
                parts.append(draw * self.count + numbers[start : start + chunk])
        return np.concatenate(parts)[: self.count]

    def _name(self, number: int) -> str:
        return f"example {number % self.count}"

    def name_next(self, parts: int, wanted: Sequence[int]) -> str:
        """Return the numbers of the next examples, in words."""
        numbers = np.concatenate(self._next_numbers(parts, wanted)) % self.count
        return f"examples {listed(numbers.tolist())}"
