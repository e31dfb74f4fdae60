"""Cutting out and resizing parts of pictures: the box is chosen first, then no more is decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from magneto.vision.decoding import SCALES, Picture, pillow

# Attempts at a rectangle that fits, before the middle is taken.
TRIES = 10


@dataclass(frozen=True)
class Box:
    """A rectangle of an image, in its pixels; corners may lie between two of them."""

    top: float
    left: float
    height: float
    width: float


def centre_box(picture: Picture, size: int, resize: int) -> Box:
    """Return the square in the middle that becomes `size` pixels when the shorter side is `resize`.

    As torchvision's Resize(resize) and CenterCrop(size), to their rounding.
    """
    shorter, longer = sorted((picture.height, picture.width))
    ends = {shorter: resize, longer: int(resize * longer / shorter)}
    height, width = ends[picture.height], ends[picture.width]
    down, across = picture.height / height, picture.width / width
    top, left = round((height - size) / 2) * down, round((width - size) / 2) * across
    return Box(top, left, size * down, size * across)


def random_box(
    picture: Picture,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    random: np.random.Generator,
) -> Box:
    """Draw a rectangle: its share of the image, and its width by its height on a log scale.

    As torchvision's RandomResizedCrop: after `TRIES` that do not fit, the largest in the middle
    whose shape is allowed.
    """
    height, width = picture.height, picture.width
    for _ in range(TRIES):
        area = height * width * random.uniform(*scale)
        shape = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < wide <= width and 0 < high <= height:
            top = int(random.integers(height - high + 1))
            left = int(random.integers(width - wide + 1))
            return Box(top, left, high, wide)
    wide = min(width, max(1, round(height * ratio[1])))
    high = min(height, max(1, round(width / ratio[0])))
    return Box((height - high) // 2, (width - wide) // 2, high, wide)


def cut(picture: Picture, box: Box, size: int, reduce: bool = False) -> np.ndarray:
    """Cut out a box and make it a square by bicubic resampling.

    Args:
        picture: What to cut from.
        box: What of it.
        size: Height and width of the result.
        reduce: Whether a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, where that still has
            more pixels than the result: faster, and a little blurred otherwise.

    Returns:
        uint8 (size, size, channels).

    Raises:
        BrokenImage: If the picture can't be decoded.
    """
    least = min(box.height, box.width)
    scale = next(s for s in SCALES if s == 1 or (reduce and least >= s * size))
    pixels = picture.pixels(scale)
    down, across = pixels.shape[0] / picture.height, pixels.shape[1] / picture.width
    top, left = box.top * down, box.left * across
    bottom, right = top + box.height * down, left + box.width * across
    if (bottom - top, right - left) == (size, size) and (int(top), int(left)) == (top, left):
        return pixels[int(top) : int(top) + size, int(left) : int(left) + size]
    edges = (left, top, min(right, pixels.shape[1]), min(bottom, pixels.shape[0]))
    return from_image(to_image(pixels).resize((size, size), pillow().Resampling.BICUBIC, edges))


def to_image(pixels: np.ndarray) -> Any:
    """Return uint8 (height, width, 1 or 3) as an image of Pillow's."""
    return pillow().fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def from_image(image: Any) -> np.ndarray:
    """Return an image of Pillow's as uint8 (height, width, channels)."""
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def with_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Return (height, width, channels): grey is repeated, colours become their brightness."""
    if pixels.shape[2] == channels:
        return pixels
    image = to_image(pixels).convert("L" if channels == 1 else "RGB")
    return from_image(image)
