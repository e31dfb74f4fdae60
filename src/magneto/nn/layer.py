"""The layers of a stack: each sublayer in its residual connection, in the field's order."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from magneto.nn.attention import CrossAttention, SelfAttention
from magneto.nn.cache import Cache, self_attention_cache
from magneto.nn.config import TransformerConfig
from magneto.nn.feed_forward import FeedForward
from magneto.nn.mask import Mask
from magneto.nn.residual import Residual
from magneto.theory.depth import Depth


class SelfAttentionSublayer(Residual):
    """Self-attention in its residual connection."""

    def __init__(self, config: TransformerConfig, depth: Depth, layer: int, drop: float) -> None:
        super().__init__(config, depth, "self_attention", drop)
        self.attention = SelfAttention(config, layer)

    def forward(self, x: Tensor, mask: Mask, shared: Tensor | None, cache: Cache | None) -> Tensor:
        """(batch, length, width) to the same shape."""
        return self.add(x, self.attention(self.before(x), mask, shared, cache))


class CrossAttentionSublayer(Residual):
    """Cross-attention in its residual connection; the norm `before` is on the query alone."""

    def __init__(self, config: TransformerConfig, depth: Depth, layer: int, drop: float) -> None:
        super().__init__(config, depth, "cross_attention", drop)
        self.attention = CrossAttention(config, layer)

    def forward(self, x: Tensor, memory: Tensor, mask: Mask, cache: Any) -> Tensor:
        """Attend from x, (batch, length, width), to memory, (batch, source length, width)."""
        return self.add(x, self.attention(self.before(x), memory, mask, cache))


class FeedForwardSublayer(Residual):
    """The feed-forward network in its residual connection."""

    def __init__(self, config: TransformerConfig, depth: Depth, drop: float) -> None:
        super().__init__(config, depth, "feed_forward", drop)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        return self.add(x, self.mlp(self.before(x)))

    def compute(self, x: Tensor) -> Tensor:
        """Return what the branch adds to x, before any sample skips it."""
        return self.scale(self.mlp(self.before(x)))


class Layer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, config: TransformerConfig, depth: Depth, layer: int) -> None:
        super().__init__()
        config = config.at(layer)
        drop = config.drop_path * layer / max(depth.layers - 1, 1)
        self.self_attention = SelfAttentionSublayer(config, depth, layer, drop)
        self.feed_forward = FeedForwardSublayer(config, depth, drop)

    def forward(
        self, x: Tensor, mask: Mask, shared: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """(batch, length, width) to the same shape."""
        return self.feed_forward(self.self_attention(x, mask, shared, cache))


class CrossLayer(nn.Module):
    """Self-attention, cross-attention, then the feed-forward network."""

    def __init__(self, config: TransformerConfig, depth: Depth, layer: int) -> None:
        super().__init__()
        config = config.at(layer)
        drop = config.drop_path * layer / max(depth.layers - 1, 1)
        self.self_attention = SelfAttentionSublayer(config, depth, layer, drop)
        self.cross_attention = CrossAttentionSublayer(config, depth, layer, drop)
        self.feed_forward = FeedForwardSublayer(config, depth, drop)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        shared: Tensor | None,
        cache: Any,
        memory: Tensor,
        source_mask: Mask,
    ) -> Tensor:
        """(batch, length, width) to the same shape."""
        x = self.self_attention(x, mask, shared, self_attention_cache(cache))
        return self.feed_forward(self.cross_attention(x, memory, source_mask, cache))
