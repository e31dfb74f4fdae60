"""From images of any size to a class for each of their pixels: sliding windows, or the whole.

The model's logits are resized to the image's own size, and the classes are chosen there; choosing
first and resizing classes costs several points of mIoU (mmsegmentation's issue 1965).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.nn.config import Grid
from magneto.nn.position import resize_positions
from magneto.vision.segmentation.config import SegmenterConfig
from magneto.vision.segmentation.data import fitted
from magneto.vision.segmentation.heads import resize
from magneto.vision.segmentation.model import Segmenter
from magneto.vision.transforms import Reading

WINDOWS = 16
"""What the model reads at once."""

Place = tuple[slice, slice]
"""Rows and columns of a window."""


@torch.no_grad()
def segment(
    model: Segmenter, pixels: np.ndarray, reading: Reading, fit: tuple[int, int] | None = None
) -> np.ndarray:
    """Return the class of each pixel of an image.

    Args:
        model: In evaluation mode.
        pixels: uint8 (height, width, channels).
        reading: The form in which the model reads images.
        fit: Longer and shorter side that the image is made to fit in first; None keeps its size.

    Returns:
        uint8 (height, width).
    """
    image = torch.from_numpy(reading.normalise(fitted(pixels, fit)))
    device = next(model.parameters()).device
    (logits,) = pixel_logits(model, [image.to(device)])
    return classes_of(logits, pixels.shape[:2]).cpu().numpy().astype(np.uint8)


def pixel_logits(model: Segmenter, images: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the logits of all pixels of each image, as `model.config.inference` says.

    Args:
        model: In evaluation mode.
        images: Each (channels, height, width), of any size, on the model's device.

    Yields:
        Of each, fp32 (classes, height, width).
    """
    if model.config.inference == "slide":
        return sliding_logits(model, images)
    return (whole_logits(model, image) for image in images)


def sliding_logits(model: Segmenter, images: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield logits by windows of the model's size; where windows overlap, their mean.

    Windows of all images are read together. An image smaller than a window is put in its upper left
    corner, the rest is zeros.
    """
    size, stride = (model.config.image_size,) * 2, model.config.stride
    large = [at_least(image, size) for image in images]
    places = [list(window_places(image.shape[1:], size, stride)) for image in large]
    windows = [image[:, *place] for image, own in zip(large, places, strict=True) for place in own]
    pieces = (torch.stack(windows[i : i + WINDOWS]) for i in range(0, len(windows), WINDOWS))
    answers = (resize(logits[None].float(), size)[0] for p in pieces for logits in model(p).main)
    for own, wide, image in zip(places, large, images, strict=True):
        mean = mean_of_windows(answers, own, wide.shape[1:])
        yield mean[:, : image.shape[1], : image.shape[2]]


def window_places(image: Sequence[int], window: Sequence[int], stride: int) -> Iterator[Place]:
    """Yield where windows lie in an image, row by row; the last ones end at its edges.

    Args:
        image: Height and width, not below the window's.
        window: Height and width.
        stride: Pixels between two windows.
    """
    rows, columns = (
        [min(step * stride, whole - part) for step in range(math.ceil((whole - part) / stride) + 1)]
        for whole, part in zip(image, window, strict=True)
    )
    for top in rows:
        for left in columns:
            yield slice(top, top + window[0]), slice(left, left + window[1])


def mean_of_windows(
    answers: Iterator[Tensor], places: Sequence[Place], size: Sequence[int]
) -> Tensor:
    """Put the next answers, (classes, height, width) each, in their places; return their mean."""
    first = next(answers)
    total = first.new_zeros(len(first), *size)
    count = first.new_zeros(1, *size)
    for place in places:
        answer = first if place is places[0] else next(answers)
        total[:, *place] += answer
        count[:, *place] += 1
    return total / count


def at_least(image: Tensor, size: Sequence[int]) -> Tensor:
    """Return an image with zeros below and to the right, where it is smaller than a size."""
    more = [max(wanted - there, 0) for wanted, there in zip(size, image.shape[1:], strict=True)]
    return F.pad(image, (0, more[1], 0, more[0]))


def whole_logits(model: Segmenter, image: Tensor) -> Tensor:
    """Return logits of an image that is read at once.

    Where its sides are no multiples of a patch, zeros are added below and to the right.
    """
    patch = model.config.patch_size
    rows, columns = (max(2, math.ceil(side / patch)) for side in image.shape[1:])
    size = rows * patch, columns * patch
    answer = for_grid(model, rows, columns)(at_least(image, size)[None]).main.float()
    return resize(answer, size)[0, :, : image.shape[1], : image.shape[2]]


@dataclass(frozen=True, kw_only=True)
class WholeImageConfig(SegmenterConfig):
    """A `SegmenterConfig` for images of one size, which need not be squares.

    Attributes:
        rows: Patches from top to bottom.
        columns: Patches from left to right.
    """

    rows: int
    columns: int

    @property
    def grid(self) -> Grid:
        """The patches row by row, after the class token if there is one."""
        return Grid(self.rows, self.columns, super().grid.prefix)


def for_grid(model: Segmenter, rows: int, columns: int) -> Segmenter:
    """Return the model for images of so many patches; all weights but positions are shared.

    Learned positions are interpolated (bicubic).
    """
    length = Grid(rows, columns, model.config.grid.prefix).length
    # The square's own positions must have a place, though they are not used.
    length = max(length, model.config.grid.length)
    given: dict[str, Any] = {
        field.name: getattr(model.config, field.name) for field in fields(SegmenterConfig)
    }
    given["max_length"] = length
    changed = WholeImageConfig(**given, rows=rows, columns=columns)
    with torch.device("meta"):
        other = Segmenter(changed)
    state = model.state_dict(keep_vars=True)
    other.load_state_dict(resize_positions(state, model.config, changed), assign=True)
    return other.train(model.training)


def classes_of(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Return the likeliest class of each pixel of an image of another size, (height, width)."""
    return resize(logits[None], size)[0].argmax(0)
