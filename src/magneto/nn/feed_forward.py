"""The feed-forward network: W2 inside(dropout(activation(W1 x))), the norm after the activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import TransformerConfig
from magneto.nn.init import projection
from magneto.nn.norm import optional_norm
from magneto.theory.placement import Sublayer


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as in GPT-2."""
    return F.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """relu(x)² (arXiv 2109.08668)."""
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
"""What the gate goes through, by the name of the gated unit (arXiv 2002.05202)."""


class GatedUnit(nn.Module):
    """activation(gate) * value, the halves of the last axis."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(..., 2 * width) to (..., width)."""
        gate, value = x.chunk(2, dim=-1)
        return self.activation(gate) * value


class FeedForward(nn.Module):
    """Two linear layers with an activation, and the placement's inner norm, between them.

    Of a gated unit, `fc1` holds gate and value, one below the other.
    """

    sublayer: Sublayer = "feed_forward"

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        inner = config.ffn_width
        gated = config.activation in GATED
        self.widths = [inner] * (2 if gated else 1)
        self.activation = GatedUnit(GATED[config.activation]) if gated else PLAIN[config.activation]
        self.fc1 = projection(config, config.width, [("fc1", rows) for rows in self.widths])
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.inside = optional_norm("inside" in config.row.feed_forward, inner, config)
        self.fc2 = projection(config, inner, [("fc2", config.width)])

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        return self.fc2(self.inside(self.activation_dropout(self.activation(self.fc1(x)))))

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of each linear layer; a gated fc1 slice by slice, as views."""
        for part in self.fc1.weight.split(self.widths):
            yield "fc1", part
        yield "fc2", self.fc2.weight
