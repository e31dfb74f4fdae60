"""The feed-forward network: W2 inside(dropout(activation(W1 x))), the norm after the activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import TransformerConfig
from magneto.nn.init import Projection
from magneto.nn.norm import optional_norm
from magneto.theory.placement import Sublayer


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as in GPT-2."""
    return F.gelu(x, approximate="tanh")


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) * value, the halves of the last axis (arXiv 2002.05202)."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": torch.relu,
    "silu": F.silu,
    "swiglu": swiglu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation, and the placement's inner norm, between them.

    With "swiglu", `fc1` holds gate and value, one below the other.
    """

    sublayer: Sublayer = "feed_forward"

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        inner = config.ffn_width
        self.widths = [inner] * (2 if config.activation == "swiglu" else 1)
        self.activation = ACTIVATIONS[config.activation]
        slices = [("fc1", rows) for rows in self.widths]
        self.fc1 = Projection(config.width, slices, config.bias)
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.inside = optional_norm("inside" in config.row.feed_forward, inner, config)
        self.fc2 = Projection(inner, [("fc2", config.width)], config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        return self.fc2(self.inside(self.activation_dropout(self.activation(self.fc1(x)))))

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of each linear layer; a gated fc1 slice by slice, as views."""
        for part in self.fc1.weight.split(self.widths):
            yield "fc1", part
        yield "fc2", self.fc2.weight
