"""The residual connection: a placement's norms around a sublayer, LayerScale, stochastic depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from magneto.nn.config import TransformerConfig
from magneto.nn.norm import Nothing, optional_norm
from magneto.theory.depth import Depth
from magneto.theory.placement import Sublayer


class DropPath(nn.Module):
    """Drops a whole branch for some samples, in training only (arXiv 1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero x, (batch, length, width), for a share `rate` of the batch; scale the rest up."""
        return x * self.factors(x.shape[0], x)[:, None, None] if self.training else x

    def factors(self, samples: int, x: Tensor) -> Tensor:
        """Draw one factor for each sample, of x's dtype: 0, or what makes up for the zeros."""
        keep = torch.rand(samples, device=x.device) >= self.rate
        return keep.to(x.dtype) / (1 - self.rate)


class LayerScale(nn.Module):
    """A learned factor per channel of a branch, small at first (arXiv 2103.17239, section 3)."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.value = value
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every factor to the initial value."""
        nn.init.constant_(self.weight, self.value)

    def forward(self, x: Tensor) -> Tensor:
        """Scale (batch, length, width); keeps the dtype."""
        return x * self.weight.type_as(x)


class Residual(nn.Module):
    """x <- after(alpha * x + drop(scale(branch(f(before(x)))))), f being the sublayer.

    Subclasses say what f is called and what else it takes.
    """

    def __init__(
        self, config: TransformerConfig, depth: Depth, sublayer: Sublayer, drop_path: float
    ) -> None:
        super().__init__()
        slots = config.row.slots(sublayer)
        self.alpha = config.row.alpha(depth)
        self.before = optional_norm("before" in slots, config.width, config)
        self.branch = optional_norm("branch" in slots, config.width, config)
        self.after = optional_norm("after" in slots, config.width, config)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else Nothing()
        scale = config.layer_scale
        self.layer_scale = Nothing() if scale is None else LayerScale(config.width, scale)
        self.drop_path = DropPath(drop_path) if drop_path else Nothing()

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Join the branch's output y to the residual stream x, both (batch, length, width)."""
        return self.join(x, self.drop_path(self.scale(y)))

    def scale(self, y: Tensor) -> Tensor:
        """Return what the branch adds for the samples that do not skip it; `add`'s first half."""
        return self.layer_scale(self.dropout(self.branch(y)))

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        """Add what `scale` gives to the residual stream; `add`'s second half."""
        return self.after(torch.add(y, x, alpha=self.alpha))
