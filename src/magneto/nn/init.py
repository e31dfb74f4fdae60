"""Norms, linear layers, and their initial weights.

As in torch, a module's `reset_parameters` fills its own parameters and buffers, and touches no
submodule. A model can therefore be built on the meta device and initialised later, module by module
(`magneto.training.model`). A projection is built with gain 1. The stack that contains it then calls
`initialize`, which stores the placement's gain in the projection and draws the weights again.

| tensor                             | initial value                                          |
|------------------------------------|--------------------------------------------------------|
| q, k, gate, position in attention  | base distribution, gain 1                              |
| v, out in self-attention, fc1, fc2 | base distribution, times the placement's gain          |
| v, out in cross-attention          | base distribution, times the gain in some placements   |
| biases                             | 0                                                      |
| norms, head scales                 | weight 1, bias 0                                       |
| LayerScale                         | configured value                                       |
| positions, embeddings, heads       | set by the tensor's own module, never scaled           |

The base distribution is one of four distributions. The distributions "xavier_normal" and
"xavier_uniform" have the standard deviation sqrt(2 / (fan_in + fan_out)). "normal" and
"truncated_normal" have the standard deviation 0.02, and "truncated_normal" is cut at two sigma.
Each slice of a fused weight is initialised separately, with the fans of the slice. Section 3.2 of
the paper derives Sub-LN's gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import BaseInit, Biased, NormKind, TransformerConfig
from magneto.theory.placement import Depth, Placement, Slot, Sublayer

Part = Callable[..., Tensor]
"""Module, or the function `identity` if the model lacks this module."""

SCALED_ROLES = ("v", "out", "fc1", "fc2")
NORMAL_STD = 0.02
# Standard deviation of a standard normal distribution cut at two sigma.
CUT_STD = 0.879596566170685


class Projection(nn.Linear):
    """Linear layer in which each slice of rows has a role, such as "q" or "fc1".

    The role determines the initial weights of the slice. The initial bias is 0. The
    constructor draws the weights with a gain of 1. Later, the function `initialize` draws them
    again with the gain of the norm placement.

    Args:
        width: Number of input features.
        slices: Pairs (role, number of rows) for the slices, from the first row on.
        bias: True if the layer has a bias.
    """

    def __init__(self, width: int, slices: Sequence[tuple[str, int]], bias: bool) -> None:
        self.slices = tuple(slices)
        # Set by `initialize`.
        self.base: BaseInit = "xavier_normal"
        self.gain = 1.0
        super().__init__(width, sum(rows for _, rows in self.slices), bias=bias)

    def reset_parameters(self) -> None:
        for role, part in self.roles():
            draw(part, self.base, self.gain if role in SCALED_ROLES else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each slice's role, and its rows as a view of the weight."""
        parts = self.weight.split([rows for _, rows in self.slices])
        yield from zip((role for role, _ in self.slices), parts, strict=True)


class PartlyBiased(Projection):
    """Projection in which only some slices have a bias.

    The parameter `bias` contains the biases of these slices, one after another.
    """

    def __init__(
        self, width: int, slices: Sequence[tuple[str, int]], biased: Collection[str]
    ) -> None:
        super().__init__(width, slices, bias=False)
        self.has_bias = [role in biased for role, _ in self.slices]
        self.rows = [rows for _, rows in self.slices]
        count = sum(rows for rows, has in zip(self.rows, self.has_bias, strict=True) if has)
        self.bias = nn.Parameter(torch.empty(count))
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        held = zip(self.rows, self.has_bias, strict=True)
        parts = iter(self.bias.split([rows for rows, has in held if has]))
        bias = [
            next(parts) if has else self.bias.new_zeros(rows)
            for rows, has in zip(self.rows, self.has_bias, strict=True)
        ]
        return F.linear(input, self.weight, torch.cat(bias))


def projection(
    config: TransformerConfig, width: int, slices: Sequence[tuple[Biased, int]]
) -> Projection:
    """Build a projection. The configuration says which slices have a bias."""
    biased = {role for role, _ in slices if config.biased(role)}
    if 0 < len(biased) < len({role for role, _ in slices}):
        return PartlyBiased(width, slices, biased)
    return Projection(width, slices, bias=bool(biased))


class NormalLinear(nn.Linear):
    """Linear layer with initial weights from N(0, std²), without the placement's gain.

    Args:
        width: Number of input features.
        outputs: Number of output features.
        bias: True if the layer has a bias. Initially, the bias is 0.
        std: Standard deviation of the initial weights.
    """

    def __init__(self, width: int, outputs: int, bias: bool, std: float) -> None:
        self.std = std
        super().__init__(width, outputs, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def initialize(module: nn.Module, placement: Placement, depth: Depth, base: BaseInit) -> None:
    """Initialise the weights of all projections in a module.

    Each `Projection` stores the base and the gain, so that `reset_parameters` can repeat the
    initialisation.

    Args:
        module: Module with projections, such as a stack. Each submodule that has projections must
            have the attribute `sublayer`.
        placement: Placement that determines the gain of each kind of sublayer.
        depth: Depth of the stack.
        base: Distribution of the weights before the gain.
    """
    for sublayer, projection in sublayer_projections(module):
        projection.base, projection.gain = base, placement.sublayer_gain(sublayer, depth)
        projection.reset_parameters()


def sublayer_projections(module: nn.Module) -> Iterator[tuple[Sublayer, Projection]]:
    """Yield (kind of sublayer, projection) for all sublayers in a module."""
    for owner in module.modules():
        for part in owner.children():
            if isinstance(part, Projection):
                yield owner.sublayer, part  # type: ignore[misc]


@torch.no_grad()
def draw(weight: Tensor, base: BaseInit, gain: float) -> None:
    """Fill a weight (fan_out, fan_in) with values from the distribution `base` times `gain`."""
    if base == "xavier_normal":
        nn.init.xavier_normal_(weight, gain)
    elif base == "xavier_uniform":
        nn.init.xavier_uniform_(weight, gain)
    elif base == "normal":
        nn.init.normal_(weight, std=gain * NORMAL_STD)
    else:
        std = gain * NORMAL_STD / CUT_STD
        nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def xavier_std(fan_in: int, fan_out: int, gain: float = 1.0) -> float:
    return gain * math.sqrt(2 / (fan_in + fan_out))


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the last dimension, in the dtype of the input even under autocast."""

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps).type_as(
            input
        )


class RMSNorm(nn.RMSNorm):
    """RMSNorm (arXiv 1910.07467) over the last dimension, in the dtype of the input."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps).type_as(x)


def identity(x: Tensor, *others: Tensor) -> Tensor:
    """Return x. This function stands in for norms and other modules that a model lacks.

    Most norm slots of a layer are empty. An `nn.Identity` in each empty slot would make small
    models a few percent slower.
    """
    return x


def build_norm(
    kind: NormKind | Literal["none"], width: int, config: TransformerConfig
) -> nn.Module:
    """Build a norm of `width` features with the configured epsilon and bias."""
    if kind == "none":
        return nn.Identity()
    if kind == "rmsnorm":
        return RMSNorm(width, eps=config.norm_eps)
    return LayerNorm(width, config.norm_eps, bias=config.bias)


def final_norm(config: TransformerConfig) -> nn.Module:
    """Build the norm on top of a stack, or an `nn.Identity` if the placement has none."""
    return build_norm(config.norm if config.row.final == "norm" else "none", config.width, config)


def optional_norm(present: bool, width: int, config: TransformerConfig) -> Part:
    return build_norm(config.norm, width, config) if present else identity


def slot_norm(config: TransformerConfig, sublayer: Sublayer, slot: Slot, width: int) -> Part:
    """Build a sublayer's norm at `slot`, or return `identity` for an empty slot."""
    return optional_norm(slot in config.row.slots(sublayer), width, config)
