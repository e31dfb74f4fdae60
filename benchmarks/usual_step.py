"""One step of the loop that people write around a model; peers in every benchmark take it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

LEARNING_RATE = 1e-4


def usual_step(
    parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor]
) -> Callable[[], Tensor]:
    """Return a function that takes one step of the usual loop, and returns the loss.

    That is: the loss, backward, the gradient's norm clipped at 1, fused AdamW.
    """
    trained = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, fused=True)

    def step() -> Tensor:
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step
