"""Initialisation: one function, by role; and the linear layers, norms and tables that it fills.

A module that holds parameters or buffers itself fills them in `reset_parameters`, as torch's own
modules do, and touches nothing below it. So a model can be built without memory and be drawn later,
one module at a time, in any order (`magneto.training.model`).

| tensor                             | distribution                                           |
|------------------------------------|--------------------------------------------------------|
| q, k, gate, position of attention  | base, gain 1                                           |
| v, out of self-attention, fc1, fc2 | base, times the placement's gain                       |
| v, out of cross-attention          | base, times the gain if the row scales cross-attention |
| biases                             | 0                                                      |
| norms, head scales                 | weight 1, bias 0                                       |
| LayerScale                         | its initial value                                      |
| positions, embeddings, heads       | their own module's, never scaled                       |

Base is one of: xavier_normal, std sqrt(2 / (fan_in + fan_out)); xavier_uniform, the same std;
normal, std 0.02; truncated_normal, cut at two sigma, std 0.02 after the cut. A fused weight is
drawn slice by slice, with the fan of the slice. Sub-LN's gain: paper, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import BaseInit, Biased, NormKind, TransformerConfig
from magneto.theory.placement import Depth, Placement, Sublayer

SCALED_ROLES = ("v", "out", "fc1", "fc2")
NORMAL_STD = 0.02
# Std of a standard normal cut at two sigma.
CUT_STD = 0.879596566170685


@runtime_checkable
class HasRoles(Protocol):
    """A sublayer that can say what its weights are for."""

    sublayer: Sublayer

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight), a fused weight slice by slice."""
        ...


class Projection(nn.Linear):
    """A linear layer drawn by role, slice by slice of its rows; its bias is zero at first.

    Args:
        width: Input features.
        slices: (role, rows) of each slice, from the first row on.
        bias: Whether there is one.
    """

    def __init__(self, width: int, slices: Sequence[tuple[str, int]], bias: bool) -> None:
        self.slices = tuple(slices)
        # What `initialize` last drew it with.
        self.base: BaseInit = "xavier_normal"
        self.gain = 1.0
        super().__init__(width, sum(rows for _, rows in self.slices), bias=bias)

    def reset_parameters(self) -> None:
        """Draw each slice from the base, times the gain if its role is scaled; zero the bias."""
        parts = self.weight.split([rows for _, rows in self.slices])
        for (role, _), part in zip(self.slices, parts, strict=True):
            draw(part, self.base, self.gain if role in SCALED_ROLES else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class PartlyBiased(Projection):
    """A projection of which some slices have no bias; `bias` holds the others', one after another.

    Args:
        width: Input features.
        slices: (role, rows) of each slice, from the first row on.
        biased: Roles whose slices have one.
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
        """(..., width) to (..., all rows)."""
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
    """Build a projection with the biases that the configuration gives its slices."""
    biased = {role for role, _ in slices if config.biased(role)}
    if 0 < len(biased) < len({role for role, _ in slices}):
        return PartlyBiased(width, slices, biased)
    return Projection(width, slices, bias=bool(biased))


class NormalLinear(nn.Linear):
    """A linear layer of N(0, std²), never scaled by a placement's gain; its bias is zero at first.

    Args:
        width: Input features.
        outputs: Output features.
        bias: Whether there is one.
        std: Of the weights.
    """

    def __init__(self, width: int, outputs: int, bias: bool, std: float) -> None:
        self.std = std
        super().__init__(width, outputs, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weights, zero the bias."""
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def initialize(module: nn.Module, placement: Placement, depth: Depth, base: BaseInit) -> None:
    """Draw every sublayer weight below `module` by its role, and zero the biases of linear layers.

    A `Projection` remembers base and gain, so that its `reset_parameters` draws the same again.

    Args:
        module: A stack; or any module whose sublayers have `roles()`.
        placement: Its row gives the gain and the kinds of sublayer that get it.
        depth: Depth of the stack.
        base: Distribution before the gain.
    """
    for child in module.modules():
        if isinstance(child, nn.Linear) and child.bias is not None:
            nn.init.zeros_(child.bias)
        if isinstance(child, HasRoles):
            gain = placement.sublayer_gain(child.sublayer, depth)
            for projection in child.modules():
                if isinstance(projection, Projection):
                    projection.base, projection.gain = base, gain
            for role, weight in child.roles():
                draw(weight, base, gain if role in SCALED_ROLES else 1.0)


@torch.no_grad()
def draw(weight: Tensor, base: BaseInit, gain: float) -> None:
    """Fill one (fan_out, fan_in) weight, or a view of one, from the base times `gain`."""
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
    """Layer normalisation over the last axis; keeps the input's dtype, under autocast too."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (..., width)."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps).type_as(
            input
        )


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation (arXiv 1910.07467) over the last axis; keeps the dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., width)."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps).type_as(x)


class Nothing(nn.Identity):
    """What fills an empty slot.

    Called past `nn.Module`'s machinery, so that hooks on it do not run: most slots are empty, and
    decoding token by token would spend some percent of its time there.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


def build_norm(kind: NormKind, width: int, config: TransformerConfig) -> nn.Module:
    """Build a norm of `kind` over `width` features, with the configuration's epsilon and bias."""
    if kind == "rmsnorm":
        return RMSNorm(width, eps=config.norm_eps)
    return LayerNorm(width, config.norm_eps, bias=config.bias)


def optional_norm(present: bool, width: int, config: TransformerConfig) -> nn.Module:
    """Build the configuration's norm where a slot holds one, `Nothing` where it is empty."""
    return build_norm(config.norm, width, config) if present else Nothing()


class Table(nn.Embedding):
    """Learned vectors by number, N(0, std²) at first; a std of 0 gives zeros."""

    def __init__(self, count: int, width: int, std: float) -> None:
        self.std = std
        super().__init__(count, width)

    def reset_parameters(self) -> None:
        """Draw the vectors."""
        nn.init.normal_(self.weight, std=self.std)


class TextEmbedding(nn.Module):
    """A table of token vectors, N(0, 1/width), and their scale."""

    def __init__(self, vocab_size: int, width: int, scale: Literal["none", "sqrt_width"]) -> None:
        super().__init__()
        self.table = Table(vocab_size, width, std=width**-0.5)
        self.scale = width**0.5 if scale == "sqrt_width" else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) token numbers to (batch, length, width)."""
        return self.scaled(self.table(tokens))

    def scaled(self, vectors: Tensor) -> Tensor:
        """Scale vectors, (batch, length, width), as those of the table are."""
        return vectors * self.scale


class PatchProjection(nn.Conv2d):
    """A convolution that sees each patch once; Xavier uniform as a matrix, bias zero at first."""

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__(channels, width, patch_size, stride=patch_size)

    def reset_parameters(self) -> None:
        """Draw the weights, zero the bias."""
        nn.init.xavier_uniform_(self.weight.view(len(self.weight), -1))
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


class PatchEmbedding(nn.Module):
    """A linear map of each patch; Xavier, never scaled by a placement's gain."""

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.proj = PatchProjection(channels, patch_size, width)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width), row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)


class ConvolutionalStem(nn.Module):
    """Convolutions with a stride, each but the last with a norm and GELU (arXiv 2106.14881).

    Their strides are the prime factors of the patch's size, so that there are as many vectors as
    patches; after the first stride a convolution without one follows. Each vector sees beyond its
    patch, which teaches more from few images. Weights are torch's own at first.
    """

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        strides = prime_factors(patch_size) or [1]
        strides = [strides[0], 1, *strides[1:]]
        sizes = [channels, *[max(width // 2, 1)] * (len(strides) - 1), width]
        parts: list[nn.Module] = []
        for stride, inner, outer in zip(strides, sizes, sizes[1:], strict=False):
            kernel = stride + 1 + stride % 2  # odd, and each pixel is seen
            parts.append(nn.Conv2d(inner, outer, kernel, stride, padding=kernel // 2))
            parts += [nn.GroupNorm(1, outer), nn.GELU()]
        self.layers = nn.Sequential(*parts[:-2])

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width), row by row."""
        return self.layers(images).flatten(2).transpose(1, 2)


def prime_factors(number: int) -> list[int]:
    """Return the prime factors of a whole number, the smallest first; none of 1."""
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *prime_factors(number // factor)]
    return []


class ClassToken(nn.Module):
    """A learned vector before the patches; zero at first, as in ViT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the vector to zero."""
        nn.init.zeros_(self.vector)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, patches, width) to (batch, 1 + patches, width)."""
        return torch.cat((self.vector.expand(len(x), 1, -1), x), dim=1)


class MaskToken(nn.Module):
    """A learned vector in place of every hidden patch; N(0, 0.02²) at first, as BEiT's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vector."""
        nn.init.normal_(self.vector, std=NORMAL_STD)

    def forward(self, patches: Tensor, hidden: Tensor | None) -> Tensor:
        """Replace the hidden ones of (batch, patches, width).

        Args:
            patches: (batch, patches, width).
            hidden: Boolean, (batch, patches), True = hidden; None hides nothing.
        """
        if hidden is None:
            return patches
        return torch.where(hidden[..., None], self.vector.to(patches.dtype), patches)
