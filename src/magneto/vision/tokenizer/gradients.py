"""Histograms of oriented gradients (Dalal and Triggs, CVPR 2005), of a batch of images at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

ORIENTATIONS = 9


def gradient_histograms(images: Tensor, cell: int) -> Tensor:
    """Count gradients by their direction, each by its length, in square cells.

    As scikit-image's `hog` without its normalisation: central differences, 0 at the border; of
    several channels the one with the longest gradient; directions without sign, each in one bin.

    Args:
        images: (batch, channels, height, width); the cell divides height and width.
        cell: Pixels of a cell's side.

    Returns:
        Mean over a cell's pixels, (batch, 9, height / cell, width / cell).
    """
    down, across = torch.zeros_like(images), torch.zeros_like(images)
    down[..., 1:-1, :] = images[..., 2:, :] - images[..., :-2, :]
    across[..., 1:-1] = images[..., 2:] - images[..., :-2]
    length, channel = torch.hypot(down, across).max(1, keepdim=True)
    angle = torch.atan2(down.gather(1, channel), across.gather(1, channel)) % math.pi
    # An angle just below 0 rounds to pi.
    number = (angle * (ORIENTATIONS / math.pi)).long().clamp(max=ORIENTATIONS - 1)
    shape = (len(images), ORIENTATIONS, *images.shape[-2:])
    by_direction = images.new_zeros(shape).scatter_(1, number, length)
    return F.avg_pool2d(by_direction, cell)
