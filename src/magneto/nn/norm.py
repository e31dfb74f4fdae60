"""Norms, and an empty slot in the place of one."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import NormKind, TransformerConfig


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
