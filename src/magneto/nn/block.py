"""Transformer layer with Sub-LN or any other norm placement.

The paper (arXiv 2210.06423) defines Sub-LN in section 3.1, with activation φ:

    Q, K, V = W^Q LN(x), W^K LN(x), W^V LN(x)     (1)
    MSA(x)  = x + W^O LN(Attention(Q, K, V))      (2)
    FC1(x)  = W^1 LN(x)                           (3)
    FC2(x)  = W^2 LN(x)                           (4)
    FFN(x)  = x + FC2(φ(FC1(x)))                  (5, printed without "x +")

A residual connection has four slots for a norm. With Sub-LN, the slot `before` holds the LN of
equations (1) and (3). With Sub-LN, the slot `inside` holds the LN of equations (2) and (4). The
table in `magneto.theory.placement` has a row for each norm placement. `magneto.nn.init` applies the
gain to W^V, W^O, W^1 and W^2. `magneto.nn.attention` implements equations (1) and (2) without the
LN of equation (1) and without the residual sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.attention import Cache, CrossAttention, Mask, SelfAttention, self_attention_cache
from magneto.nn.config import TransformerConfig
from magneto.nn.init import Part, identity, projection, slot_norm
from magneto.theory.placement import Depth, Sublayer


class Residual(nn.Module):
    """Residual connection: x <- after(alpha * x + branch(W_out @ inside(f(before(x))))).

    f is attention or the first half of the feed-forward network, and W_out is the last matrix of
    the sublayer. Subclasses have f, `inside` and W_out (`Attention` or `FeedForward`); this class
    has the other slots. Each slot is a norm or the identity. With Sub-LN, self-attention and the
    feed-forward network have the norms `before` and `inside`: x <- x + W_out @ LN(f(LN(x))). The
    output of `branch` passes through dropout, LayerScale and stochastic depth, in this order,
    before it is added to alpha * x.
    """

    def __init__(
        self, config: TransformerConfig, depth: Depth, sublayer: Sublayer, drop_path: float
    ) -> None:
        super().__init__()
        self.alpha = config.row.alpha(depth)
        self.before = slot_norm(config, sublayer, "before", config.width)
        self.branch = slot_norm(config, sublayer, "branch", config.width)
        self.after = slot_norm(config, sublayer, "after", config.width)
        self.dropout: Part = nn.Dropout(config.dropout) if config.dropout else identity
        scale = config.layer_scale
        self.layer_scale: Part = identity if scale is None else LayerScale(config.width, scale)
        self.drop_path: Part = DropPath(drop_path) if drop_path else identity

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sublayer's output y to the residual stream x, both (batch, length, width)."""
        return self.join(x, self.drop_path(self.scale(y)))

    def scale(self, y: Tensor) -> Tensor:
        return self.layer_scale(self.dropout(self.branch(y)))

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return self.after(torch.add(y, x, alpha=self.alpha))


class SelfAttentionSublayer(Residual):
    """Self-attention sublayer, equations (1) and (2): x + W^O LN(Attention(Q, K, V))."""

    def __init__(self, config: TransformerConfig, depth: Depth, layer: int, drop: float) -> None:
        super().__init__(config, depth, "self_attention", drop)
        self.attention = SelfAttention(config, layer)

    def forward(self, x: Tensor, mask: Mask, shared: Tensor | None, cache: Cache | None) -> Tensor:
        return self.add(x, self.attention(self.before(x), mask, shared, cache))


class CrossAttentionSublayer(Residual):
    """Cross-attention sublayer.

    With Sub-LN, this sublayer has a single norm (paper, section 2), which is before the query
    projection, as in the authors' code.
    """

    def __init__(self, config: TransformerConfig, depth: Depth, layer: int, drop: float) -> None:
        super().__init__(config, depth, "cross_attention", drop)
        self.attention = CrossAttention(config, layer)

    def forward(self, x: Tensor, memory: Tensor, mask: Mask, cache: Any) -> Tensor:
        """Add attention over memory (batch, sources, width) to x (batch, length, width)."""
        return self.add(x, self.attention(self.before(x), memory, mask, cache))


class FeedForwardSublayer(Residual):
    """Feed-forward sublayer, equations (3) to (5): x + W^2 LN(φ(W^1 LN(x)))."""

    def __init__(self, config: TransformerConfig, depth: Depth, drop: float) -> None:
        super().__init__(config, depth, "feed_forward", drop)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, self.mlp(self.before(x)))

    def compute(self, x: Tensor) -> Tensor:
        return self.scale(self.mlp(self.before(x)))


class FeedForward(nn.Module):
    """Feed-forward network W^2 LN(φ(W^1 x)).

    For a gated activation φ, the first half of the rows of `fc1` computes the gate.
    """

    sublayer: Sublayer = "feed_forward"

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        inner = config.ffn_width
        gated = config.activation in GATED
        self.activation = GatedUnit(GATED[config.activation]) if gated else PLAIN[config.activation]
        self.fc1 = projection(config, config.width, [("fc1", inner) for _ in range(1 + gated)])
        dropout = config.activation_dropout
        self.activation_dropout: Part = nn.Dropout(dropout) if dropout else identity
        self.inside = slot_norm(config, self.sublayer, "inside", inner)
        self.fc2 = projection(config, inner, [("fc2", config.width)])

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.inside(self.activation_dropout(self.activation(self.fc1(x)))))


class Layer(nn.Module):
    """Transformer layer. If `crosses` is true, the layer has cross-attention."""

    def __init__(self, config: TransformerConfig, depth: Depth, layer: int, crosses: bool) -> None:
        super().__init__()
        config, drop = config.at(layer), drop_path_rate(config, depth, layer)
        self.self_attention = SelfAttentionSublayer(config, depth, layer, drop)
        self.cross_attention = (
            CrossAttentionSublayer(config, depth, layer, drop) if crosses else None
        )
        self.feed_forward = FeedForwardSublayer(config, depth, drop)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        shared: Tensor | None = None,
        cache: Any = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
    ) -> Tensor:
        """Return the new residual stream, (batch, length, width).

        `memory` is the encoder's output, (batch, source length, width).
        """
        x = self.self_attention(x, mask, shared, self_attention_cache(cache))
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, memory_mask, cache)
        return self.feed_forward(x)


def drop_path_rate(config: TransformerConfig, depth: Depth, layer: int) -> float:
    """Return the stochastic-depth rate of a layer, which grows linearly from 0 at the bottom."""
    return config.drop_path * layer / max(depth.layers - 1, 1)


class DropPath(nn.Module):
    """Stochastic depth, which drops a branch for random samples in training (arXiv 1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Set whole samples of x to 0 with probability `rate`, and scale up all other samples."""
        return x * self.factors(x.shape[0], x)[:, None, None] if self.training else x

    def factors(self, samples: int, x: Tensor) -> Tensor:
        """Return a random factor for each sample, 0 or 1 / (1 - rate), in the dtype of x."""
        keep = torch.rand(samples, device=x.device) >= self.rate
        return keep.to(x.dtype) / (1 - self.rate)


class LayerScale(nn.Module):
    """Learned factor per channel of a branch, initially small (arXiv 2103.17239, section 2)."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.value = value
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, self.value)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.type_as(x)


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """Return relu(x)² (arXiv 2109.08668)."""
    return torch.relu(x).square()


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": torch.relu,
    "relu2": relu2,
    "silu": F.silu,
}
GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "geglu": F.gelu,
    "geglu_tanh": gelu_tanh,
    "reglu": torch.relu,
    "relu2_glu": relu2,
    "swiglu": F.silu,
}
"""Activations of gates, by name of the gated unit (arXiv 2002.05202)."""


class GatedUnit(nn.Module):
    """Gated unit activation(gate) * value, where gate and value are the halves of the input."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., 2 * width) to (..., width)."""
        gate, value = x.chunk(2, dim=-1)
        return self.activation(gate) * value
