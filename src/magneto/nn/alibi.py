"""ALiBi: a fixed bias on the logits that falls with the distance (arXiv 2108.12409)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from magneto.nn.config import TransformerConfig


class AlibiTable(nn.Module):
    """Shares a bias per head and distance: minus a slope times the places between query and key."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return x, and the bias (1, heads, query length, key length)."""
        keys = torch.arange(past + x.shape[1], device=x.device)
        distance = (keys[None] - keys[past:, None]).abs()
        slope = slopes(self.heads, x.device)[:, None, None]
        return x, -(slope * distance)[None].to(x.dtype)


def slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """Return each head's slope, (heads,): a geometric sequence from 2 ** (-8 / heads) to 2 ** -8.

    Where the number of heads is no power of two, those of the power below come first, then every
    other one of the power above, as in the authors' code.
    """
    below = 1 << (heads.bit_length() - 1)
    head = torch.arange(heads, device=device)
    power = torch.where(head < below, 8 * (head + 1), 8 * (head - below) + 4) / below
    return 2**-power
