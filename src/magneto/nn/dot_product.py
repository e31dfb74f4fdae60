"""Softmax attention: torch's own function, or plain operations where its logits are capped.

Shapes: B batch, H heads, K key/value heads, T query length, S key length, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import TransformerConfig
from magneto.nn.mask import Mask
from magneto.nn.norm import Nothing


class Cap(nn.Module):
    """Soft-capping: limit * tanh(x / limit), never beyond the limit (arXiv 2408.00118, 2)."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """Cap each element."""
        return (x / self.limit).tanh() * self.limit


def build_cap(limit: float | None) -> nn.Module:
    """Build a cap, or nothing where there is no limit."""
    return Nothing() if limit is None else Cap(limit)


class DotProductAttention(nn.Module):
    """Softmax attention without parameters; a module, so that a hook sees q, k and the mask."""

    def __init__(self, dropout: float, limit: float | None = None) -> None:
        super().__init__()
        self.dropout = dropout
        self.limit = limit
        self.cap = build_cap(limit)

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


class EagerAttention(DotProductAttention):
    """Softmax attention written out, in plain operations; the softmax is taken in fp32.

    torch's function knows no limit of the logits: what has one computes by this.
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Tensor | None = None
    ) -> Tensor:
        """Attend; shapes as in `DotProductAttention`."""
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        logits = self.cap(query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5)
        allowed = join(mask, bias, query, key)
        if allowed is None and mask.causal:
            shape = logits.shape[-2:]
            allowed = torch.ones(shape, dtype=torch.bool, device=logits.device).tril()
        if allowed is not None and allowed.dtype == torch.bool:
            logits = logits.masked_fill(~allowed, float("-inf"))
        elif allowed is not None:
            logits = logits + allowed
        shares = logits.float().softmax(-1).to(query.dtype)
        attended = nn.functional.dropout(shares, self.dropout, self.training) @ value
        return attended if mask.seeing is None else attended * mask.seeing


def build_dot_product(config: TransformerConfig) -> DotProductAttention:
    """Build the attention of a configuration."""
    limit = config.attention_logit_cap
    kind = DotProductAttention if limit is None else EagerAttention
    return kind(config.attention_dropout, limit)


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
