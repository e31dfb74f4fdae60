"""Softmax attention by torch's own function.

Shapes: B batch, H heads, K key/value heads, T query length, S key length, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.mask import Mask


class DotProductAttention(nn.Module):
    """Softmax attention without parameters; a module, so that a hook sees q, k and the mask."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Tensor | None = None
    ) -> Tensor:
        """Attend.

        Args:
            query: (B, H, T, D).
            key: (B, K, S, D).
            value: (B, K, S, D).
            mask: Who may attend to whom; rows that may attend to nothing give zeros.
            bias: Added to the logits, broadcast to (B, H, T, S).

        Returns:
            (B, H, T, D).
        """
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=join(mask, bias, query, key),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask.causal and bias is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return attended if mask.seeing is None else attended * mask.seeing


def join(mask: Mask, bias: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return boolean mask and bias as one mask for torch's attention."""
    if bias is None:
        return mask.allowed
    allowed = mask.allowed
    if mask.causal:
        shape = (query.shape[2], key.shape[2])
        allowed = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if allowed is None:
        return bias
    return bias.masked_fill(~allowed, float("-inf"))
