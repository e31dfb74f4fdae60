"""From a picture to what a model reads: a part is cut out, resized and normalised.

The part is chosen first, then no more of the picture is decoded than it needs. A transform is a
function of a picture and a generator; it returns float32 (channels, height, width), or two of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from magneto.vision.config import ImageDataConfig
from magneto.vision.decoding import SCALES, Picture, pillow

# Mean and standard deviation that are taken out, of pixels from 0 to 1.
NORMALISATIONS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
# Attempts at a rectangle that fits, before the middle is taken.
TRIES = 10
# How far the bicubic filter sees to each side, in pixels of the larger of the two images.
SUPPORT = 2


@dataclass(frozen=True)
class Box:
    """A rectangle of an image, in its pixels."""

    top: int
    left: int
    height: int
    width: int


def centre_crop(picture: Picture, size: int, resize: int) -> np.ndarray:
    """Resize a picture until its shorter side is `resize`, and cut out the square in the middle.

    As torchvision's Resize(resize) and CenterCrop(size), to one level. No more is computed than
    is kept. Rounding lies between the passes, so their order matters, and Pillow chooses it by the
    sizes that it is given: here they go as they would for the whole picture, rows first.

    Returns:
        uint8 (size, size, channels).

    Raises:
        BrokenImage: If the picture can't be decoded.
    """
    pixels = picture.pixels()
    high, wide = pixels.shape[:2]
    shorter, longer = sorted((high, wide))
    ends = {shorter: resize, longer: int(resize * longer / shorter)}
    height, width = ends[high], ends[wide]
    row, column = round((height - size) / 2), round((width - size) / 2)
    if (high, wide) == (height, width):
        return pixels[row : row + size, column : column + size]
    rows, above, below = span(row, size, high, height)
    columns, before, after = span(column, size, wide, width)
    bicubic, part = pillow().Resampling.BICUBIC, to_image(pixels[rows, columns])
    narrow = part.resize((size, part.height), bicubic, (before, 0, after, part.height))
    return from_image(narrow.resize((size, size), bicubic, (0, above, size, below)))


def span(start: int, size: int, old: int, new: int) -> tuple[slice, float, float]:
    """Return of which old pixels a part of a resized side is made, and where in them it lies.

    `start` and `size` of the part are in new pixels; the side was `old` long and is `new`.
    """
    scale = old / new
    begin, end = start * scale, min((start + size) * scale, old)
    margin = math.ceil(SUPPORT * max(1, scale)) + 1
    first = max(0, int(begin) - margin)
    return slice(first, min(old, math.ceil(end) + margin)), begin - first, end - first


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

    As torchvision's resized_crop, level by level, where the JPEG is decoded whole.

    With `reduce` a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, where that still has more
    pixels than the result: faster, and a little blurred otherwise.

    Returns:
        uint8 (size, size, channels).

    Raises:
        BrokenImage: If the picture can't be decoded.
    """
    least = min(box.height, box.width)
    scale = next(s for s in SCALES if s == 1 or (reduce and least >= s * size))
    pixels = picture.pixels(scale)
    if pixels.shape[:2] == (picture.height, picture.width):
        scale = 1  # as everything but a JPEG
    top, left = box.top // scale, box.left // scale
    bottom, right = -(-(box.top + box.height) // scale), -(-(box.left + box.width) // scale)
    pixels = pixels[top:bottom, left:right]
    if pixels.shape[:2] == (size, size):
        return pixels
    right, bottom = box.left + box.width, box.top + box.height
    edges = (box.left / scale - left, box.top / scale - top,
             right / scale - left, bottom / scale - top)  # fmt: skip
    return from_image(to_image(pixels).resize((size, size), pillow().Resampling.BICUBIC, edges))


def fitted_size(height: int, width: int, fit: tuple[int, int] | None) -> tuple[int, int]:
    """Return the height and width at which an image fits in (longer, shorter), its ratio kept."""
    if fit is None:
        return height, width
    factor = min(max(fit) / max(height, width), min(fit) / min(height, width))
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


def fitted(pixels: np.ndarray, fit: tuple[int, int] | None) -> np.ndarray:
    """Resize pixels (bilinear) to the largest size of their ratio within (longer, shorter) side."""
    height, width = pixels.shape[:2]
    rows, columns = fitted_size(height, width, fit)
    if (rows, columns) == (height, width):
        return pixels
    bilinear = pillow().Resampling.BILINEAR
    return from_image(to_image(pixels).resize((columns, rows), bilinear))


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


@dataclass(frozen=True)
class Reading:
    """The form in which a model reads images.

    Attributes:
        size: Height and width.
        channels: 1 or 3.
        normalisation: One of `NORMALISATIONS`.
        peak: Value of the brightest pixel of the source.
    """

    size: int
    channels: int = 3
    normalisation: str = "half"
    peak: int = 255

    @property
    def blank(self) -> np.ndarray:
        """Nothing to see: zeros."""
        return np.zeros((self.channels, self.size, self.size), np.float32)

    def normalise(self, pixels: np.ndarray) -> np.ndarray:
        """Return uint8 (height, width, channels) as float32 (channels, height, width)."""
        pixels = with_channels(pixels, self.channels)
        found = np.empty((self.channels, *pixels.shape[:2]), np.float32)
        # Channel by channel: a loop over three values, innermost, is twenty times as slow.
        for plane, mean, std in zip(range(self.channels), *self._scale, strict=False):
            np.subtract(pixels[..., plane], mean, out=found[plane])
            found[plane] /= std
        return found

    def restore(self, image: np.ndarray) -> np.ndarray:
        """Return float32 (channels, height, width) as uint8 (height, width, channels), to look at.

        What was the brightest pixel that there can be is 255.
        """
        planes = zip(image, *self._scale, strict=False)
        pixels = np.stack([plane * std + mean for plane, mean, std in planes], -1)
        return (pixels * (255 / self.peak)).round().clip(0, 255).astype(np.uint8)

    @cached_property
    def _scale(self) -> list[list[np.float32]]:
        both = NORMALISATIONS[self.normalisation]
        return [[np.float32(self.peak) * np.float32(value) for value in values] for values in both]


@dataclass(frozen=True)
class CentreCrop:
    """Resizes the shorter side, cuts out the middle: what validation images go through."""

    reading: Reading
    resize: int

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Transform a picture; nothing is drawn."""
        return self.reading.normalise(centre_crop(picture, self.reading.size, self.resize))


def validation_transform(data: ImageDataConfig, reading: Reading) -> CentreCrop:
    """Return what is done to validation images; ValueError if more is cut out than is there."""
    resize = data.resize or reading.size
    if resize < reading.size:
        raise ValueError(f"data.resize ({resize}) is below the model's image_size ({reading.size})")
    return CentreCrop(reading, resize)
