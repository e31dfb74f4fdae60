"""Batches that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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

    Args:
        plans: What each batch is made of, its row numbers for example.
        make: From a plan to a batch.
    """

    def __init__(self, plans: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self.plans, self.make = plans, make

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, number: Any) -> Any:
        return self.make(self.plans[number])
