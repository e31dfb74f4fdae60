"""Initialisation of weights by their role, linear layers, and norms.

Each module with parameters or buffers fills them in `reset_parameters`, as torch's modules do, and
touches no submodule. A model can therefore be built on the meta device and initialised later,
module by module in any order (`magneto.training.model`).

| tensor                             | distribution                                           |
|------------------------------------|--------------------------------------------------------|
| q, k, gate, position in attention  | base, gain 1                                           |
| v, out in self-attention, fc1, fc2 | base, times the placement's gain                       |
| v, out in cross-attention          | base, times the gain if it scales cross-attention      |
| biases                             | 0                                                      |
| norms, head scales                 | weight 1, bias 0                                       |
| LayerScale                         | its initial value                                      |
| positions, embeddings, heads       | that of their own module, never scaled                 |

The base is one of four distributions. xavier_normal and xavier_uniform have the standard deviation
sqrt(2 / (fan_in + fan_out)). normal has the standard deviation 0.02. truncated_normal is cut at two
sigma and has the standard deviation 0.02 after the cut. The slices of a fused weight are
initialised separately, each with its own fan. Section 3.2 of the paper derives Sub-LN's gain.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import BaseInit, Biased, NormKind, TransformerConfig
from magneto.theory.placement import Depth, Placement, Slot, Sublayer

SCALED_ROLES = ("v", "out", "fc1", "fc2")
NORMAL_STD = 0.02
# Standard deviation of a standard normal distribution cut at two sigma.
CUT_STD = 0.879596566170685


class Projection(nn.Linear):
    """Linear layer whose slices of rows are initialised by role; its bias is initially 0.

    torch's constructor calls `reset_parameters` with a gain of 1. `initialize` knows the placement
    and calls it again with the right gain.

    Args:
        width: Input features.
        slices: (role, number of rows) of each slice, from the first row on.
        bias: Whether there is a bias.
    """

    def __init__(self, width: int, slices: Sequence[tuple[str, int]], bias: bool) -> None:
        self.slices = tuple(slices)
        # Set by `initialize`.
        self.base: BaseInit = "xavier_normal"
        self.gain = 1.0
        super().__init__(width, sum(rows for _, rows in self.slices), bias=bias)

    def reset_parameters(self) -> None:
        """Initialise each slice from the base, times the gain for scaled roles; zero the bias."""
        for role, part in self.roles():
            draw(part, self.base, self.gain if role in SCALED_ROLES else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, rows of the weight) of each slice; the rows are a view."""
        parts = self.weight.split([rows for _, rows in self.slices])
        yield from zip((role for role, _ in self.slices), parts, strict=True)


class PartlyBiased(Projection):
    """Projection with a bias for the slices `biased`; `bias` concatenates their biases."""

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
        """Project the input: (..., width) to (..., number of rows of all slices)."""
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
    """Build a projection with the configured biases of its slices."""
    biased = {role for role, _ in slices if config.biased(role)}
    if 0 < len(biased) < len({role for role, _ in slices}):
        return PartlyBiased(width, slices, biased)
    return Projection(width, slices, bias=bool(biased))


class NormalLinear(nn.Linear):
    """Linear layer with N(0, std²) weights, without a placement's gain; its bias is initially 0.

    Args:
        width: Input features.
        outputs: Output features.
        bias: Whether there is a bias.
        std: Standard deviation of the weights.
    """

    def __init__(self, width: int, outputs: int, bias: bool, std: float) -> None:
        self.std = std
        super().__init__(width, outputs, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def initialize(module: nn.Module, placement: Placement, depth: Depth, base: BaseInit) -> None:
    """Initialise the projections of all sublayers in a module by role.

    A `Projection` stores base and gain, so that its `reset_parameters` repeats the initialisation.

    Args:
        module: A stack, or another module in which each submodule with projections has the
            attribute `sublayer`.
        placement: Placement with the gain and the kinds of sublayer that get it.
        depth: Depth of the stack.
        base: Distribution before the gain.
    """
    for sublayer, projection in sublayer_projections(module):
        projection.base, projection.gain = base, placement.sublayer_gain(sublayer, depth)
        projection.reset_parameters()


def sublayer_projections(module: nn.Module) -> Iterator[tuple[Sublayer, Projection]]:
    """Yield the projections of all sublayers in a module, each with the kind of its sublayer."""
    for owner in module.modules():
        for part in owner.children():
            if isinstance(part, Projection):
                yield owner.sublayer, part  # type: ignore[misc]


@torch.no_grad()
def draw(weight: Tensor, base: BaseInit, gain: float) -> None:
    """Fill a (fan_out, fan_in) weight, or a view of one, from the base times `gain`."""
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
    """Return the standard deviation of Xavier's initialisation."""
    return gain * math.sqrt(2 / (fan_in + fan_out))


class LayerNorm(nn.LayerNorm):
    """Layer normalisation over the last dimension, in the input's dtype even under autocast."""

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps).type_as(
            input
        )


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation (arXiv 1910.07467) over the last dimension, in x's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps).type_as(x)


class FastIdentity(nn.Identity):
    """Identity in an empty norm slot, called without `nn.Module`'s machinery.

    Most slots are empty. With `nn.Identity`, decoding token by token would spend some percent of
    its time on empty slots. Hooks on this module do not run.
    """

    def __call__(self, x: Tensor, *others: Tensor) -> Tensor:
        return x


def build_norm(
    kind: NormKind | Literal["none"], width: int, config: TransformerConfig
) -> nn.Module:
    """Build a norm of `kind` over `width` features, with the configuration's epsilon and bias."""
    if kind == "none":
        return FastIdentity()
    if kind == "rmsnorm":
        return RMSNorm(width, eps=config.norm_eps)
    return LayerNorm(width, config.norm_eps, bias=config.bias)


def optional_norm(present: bool, width: int, config: TransformerConfig) -> nn.Module:
    """Build the configured norm if `present`, else an identity."""
    return build_norm(config.norm if present else "none", width, config)


def slot_norm(config: TransformerConfig, sublayer: Sublayer, slot: Slot, width: int) -> nn.Module:
    """Build the norm of a sublayer's slot; an identity if the placement leaves the slot empty."""
    return optional_norm(slot in config.row.slots(sublayer), width, config)
