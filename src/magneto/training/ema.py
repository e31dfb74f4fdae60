"""An exponential moving average of the weights."""

# The torch._foreach functions have no public names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from magneto.training.sharding import local_shard


class WeightAverage:
    """Follows a model: average <- decay * average + (1 - decay) * weights, after every step."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = list(model.parameters())
        self.average: list[Tensor] = [local_shard(w).detach().clone() for w in self.weights]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights."""
        torch._foreach_lerp_(self.average, [local_shard(w) for w in self.weights], 1 - self.decay)

    @torch.no_grad()
    def take(self) -> None:
        """Make the average equal to the weights."""
        torch._foreach_copy_(self.average, [local_shard(w) for w in self.weights])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average into the model for a while."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        shares = [local_shard(w) for w in self.weights]
        kept = [share.clone() for share in shares]
        torch._foreach_copy_(shares, self.average)
        torch._foreach_copy_(self.average, kept)
