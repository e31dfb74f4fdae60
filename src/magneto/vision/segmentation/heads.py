"""Heads that turn a ViT's features into classes of pixels: pyramid, UperNet, FCN.

UperNet is arXiv 1807.10221, its pyramid pooling arXiv 1612.01105; the FCN head is arXiv 1411.4038.
The pyramid is BEiT's (paper's recipe for ADE20k). Resizing never aligns corners. Their norm is
group norm, each image by itself, so that micro-batches and ranks change no result; published
recipes have batch norm, whose statistics are no sum over examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = 4
"""Of a pyramid: each is half as large as the one before."""
GROUPS, LEAST = 32, 16
"""Groups at most and channels of a group at least (arXiv 1803.08494): a map pooled to one place has
no other values than its channels."""


class GroupNorm(nn.GroupNorm):
    """Group normalisation of (batch, channels, height, width); keeps the input's dtype."""

    def __init__(self, channels: int) -> None:
        groups = math.gcd(GROUPS, channels)
        while groups > 1 and channels // groups < LEAST:
            groups //= 2
        super().__init__(groups, channels)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each image by itself."""
        return super().forward(input).type_as(input)


class Convolution(nn.Conv2d):
    """A convolution that keeps the size, without bias; He normal over its outputs at first."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__(inputs, outputs, size, padding=size // 2, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


class PixelClassifier(nn.Conv2d):
    """Features to logits, pixel by pixel; N(0, 0.01²) at first, so the loss is near ln classes."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__(inputs, classes, 1)

    def reset_parameters(self) -> None:
        """Draw the weights, zero the bias."""
        nn.init.normal_(self.weight, std=0.01)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """Resize (batch, channels, height, width) to another (height, width): bilinear."""
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def convolution_block(inputs: int, outputs: int, size: int) -> nn.Sequential:
    """Return convolution, norm and ReLU."""
    return nn.Sequential(Convolution(inputs, outputs, size), GroupNorm(outputs), nn.ReLU())


class FeaturePyramid(nn.Module):
    """Four feature maps of one size to four sizes: 4 and 2 times as large, the same, and half.

    Transposed convolutions enlarge, max pooling halves, as in BEiT's segmentation.
    """

    def __init__(self, width: int) -> None:
        super().__init__()

        def double() -> nn.Module:
            return nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)

        four_times = nn.Sequential(double(), GroupNorm(width), nn.GELU(), double())
        self.levels = nn.ModuleList((four_times, double(), nn.Identity(), nn.MaxPool2d(2)))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Four of (batch, width, rows, columns) to four sizes, the largest first."""
        return [level(x) for level, x in zip(self.levels, features, strict=True)]


class PyramidPooling(nn.Module):
    """What is seen of a map at several scales, put beside the map (arXiv 1612.01105)."""

    def __init__(self, inputs: int, channels: int, scales: Sequence[int]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(scale), convolution_block(inputs, channels, 1))
            for scale in scales
        )
        self.bottleneck = convolution_block(inputs + len(scales) * channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, channels, height, width)."""
        pooled = [resize(scale(x), x.shape[2:]) for scale in self.scales]
        return self.bottleneck(torch.cat((x, *pooled), dim=1))


class UperNetHead(nn.Module):
    """UperNet: pyramid pooling on the smallest map, a feature pyramid network, all maps fused.

    Args:
        width: Channels of each map of the pyramid.
        channels: Of every map within.
        classes: Of the answer.
        scales: Rows and columns to which pyramid pooling pools.
        dropout: Of whole channels, before the classes.
    """

    def __init__(
        self,
        width: int,
        channels: int,
        classes: int,
        scales: Sequence[int],
        dropout: float,
    ) -> None:
        super().__init__()
        self.pooling = PyramidPooling(width, channels, scales)
        lower = range(LEVELS - 1)
        self.laterals = nn.ModuleList(convolution_block(width, channels, 1) for _ in lower)
        self.smooth = nn.ModuleList(convolution_block(channels, channels, 3) for _ in lower)
        self.fuse = convolution_block(LEVELS * channels, channels, 3)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = PixelClassifier(channels, classes)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        """Four maps, the largest first, to logits (batch, classes, height, width) of its size."""
        maps = [self.pooling(levels[-1])]
        for lateral, level in zip(reversed(self.laterals), reversed(levels[:-1]), strict=True):
            maps.insert(0, lateral(level) + resize(maps[0], level.shape[2:]))
        largest = maps[0].shape[2:]
        smooth = [module(x) for module, x in zip(self.smooth, maps[:-1], strict=True)]
        alike = [smooth[0], *(resize(x, largest) for x in (*smooth[1:], maps[-1]))]
        return self.classifier(self.dropout(self.fuse(torch.cat(alike, dim=1))))


class FCNHead(nn.Module):
    """One convolution and the classes: the auxiliary head, which training alone needs.

    Args:
        width: Channels of the map.
        channels: Within.
        classes: Of the answer.
        dropout: Of whole channels, before the classes.
    """

    def __init__(self, width: int, channels: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.convolution = convolution_block(width, channels, 3)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = PixelClassifier(channels, classes)

    def forward(self, level: Tensor) -> Tensor:
        """(batch, width, height, width) to logits (batch, classes, height, width)."""
        return self.classifier(self.dropout(self.convolution(level)))
