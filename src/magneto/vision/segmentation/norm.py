"""Norms of convolutional heads: batch norm, the published recipe's, and group norm.

Batch statistics are no sum over examples: a batch cut into micro-batches, or among ranks, is
normalised piece by piece, so that another cut gives another loss. This is the one exception to the
rule that cutting changes nothing; group norm keeps the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HeadNorm = Literal["group", "batch"]

GROUPS, LEAST = 32, 16
"""Groups at most and channels of a group at least (arXiv 1803.08494): a map pooled to one place has
no other values than its channels."""


class GroupNorm(nn.GroupNorm):
    """Group normalisation of (batch, channels, height, width); keeps the input's dtype."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each image by itself."""
        return super().forward(input).type_as(input)


class BatchNorm(nn.Module):
    """Batch normalisation whose running statistics are those of whole batches.

    In training each micro-batch is normalised by its own mean and variance, and adds its sums to a
    buffer. `update_statistics` adds the buffers of all ranks up and moves the running statistics,
    once per optimizer step: so all ranks hold the same ones, and they are the mean and variance of
    the global batch, however it was cut.

    Args:
        channels: Of the input.
        momentum: Share of a step's statistics in the running ones (torch's default).
        eps: Added to the variance (torch's default).
    """

    running_mean: Tensor
    running_var: Tensor
    sums: Tensor

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))
        # Of this step so far: values per channel, their sum, the sum of their squares.
        self.register_buffer("sums", torch.empty(3, channels), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight and variance to one, all else to zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.running_mean)
        nn.init.ones_(self.running_var)
        nn.init.zeros_(self.sums)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (batch, channels, height, width).

        Raises:
            ValueError: In training, if there is one value per channel: it has no variance.
        """
        if not self.training:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        if x.numel() == x.shape[1]:
            raise ValueError("batch norm needs two images in every micro-batch: raise "
                             "training.batch_size, or set model.head_norm group")  # fmt: skip
        self.add(x.detach().float())
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """Add a micro-batch to this step's sums."""
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
        one = torch.ones_like(mean)
        added = torch.stack((one, mean, variance + mean.square()))
        self.sums += added * (x.numel() // x.shape[1])

    @torch.no_grad()
    def move(self, sums: Tensor) -> None:
        """Move the running statistics by a step's sums, of all ranks, and begin anew."""
        count, mean, square = sums[0], sums[1] / sums[0], sums[2] / sums[0]
        variance = (square - mean.square()).clamp(min=0) * count / (count - 1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)
        self.sums.zero_()


def update_statistics(model: nn.Module, add_up: Callable[[Tensor], Tensor]) -> None:
    """Move the running statistics of all batch norms; after every optimizer step.

    Args:
        model: Any model; each of its batch norms has seen a micro-batch.
        add_up: Returns the sum of all ranks' tensors, alike on every rank. It is called once.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    if not norms:
        return
    total = add_up(torch.cat([norm.sums for norm in norms], dim=1))
    sizes = [len(norm.weight) for norm in norms]
    for norm, sums in zip(norms, total.split(sizes, dim=1), strict=True):
        norm.move(sums)


def build_head_norm(kind: HeadNorm, channels: int) -> nn.Module:
    """Build a norm over so many channels."""
    if kind == "batch":
        return BatchNorm(channels)
    groups = math.gcd(GROUPS, channels)
    while groups > 1 and channels // groups < LEAST:
        groups //= 2
    return GroupNorm(groups, channels)
