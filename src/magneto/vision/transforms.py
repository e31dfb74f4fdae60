"""Image transforms: cropping, resizing and normalisation.

A transform maps a picture and a random generator to float32 (channels, height, width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from magneto.vision.decoding import SCALES, Picture, pillow

# Mean and standard deviation of pixels from 0 to 1, by which images are normalised.
NORMALISATIONS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
# Attempts at a random rectangle that fits, before the centre is taken.
TRIES = 10
# Support of the bicubic filter to each side, in pixels of the smaller image (source or result).
SUPPORT = 2


@dataclass(frozen=True)
class Box:
    """Rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def centre_crop(picture: Picture, size: int, resize: int) -> np.ndarray:
    """Resize a picture so that its shorter side is `resize`, and crop the square in the centre.

    The result is uint8 (size, size, channels). Torchvision's Resize(resize) and CenterCrop(size)
    give a result that differs by at most 1 of 255 levels.
    """
    pixels = picture.pixels()
    high, wide = pixels.shape[:2]
    shorter, longer = sorted((high, wide))
    ends = {shorter: resize, longer: int(resize * longer / shorter)}
    height, width = ends[high], ends[wide]
    row, column = round((height - size) / 2), round((width - size) / 2)
    if (high, wide) == (height, width):
        return pixels[row : row + size, column : column + size]
    rows, above, below = source_span(row, size, high, height)
    columns, before, after = source_span(column, size, wide, width)
    bicubic, part = pillow().Resampling.BICUBIC, to_image(pixels[rows, columns])
    narrow = part.resize((size, part.height), bicubic, (before, 0, after, part.height))
    return from_image(narrow.resize((size, size), bicubic, (0, above, size, below)))


def source_span(start: int, size: int, old: int, new: int) -> tuple[slice, float, float]:
    """Find the source pixels from which a part of a resized image is computed.

    A side is resized from `old` to `new` pixels. Only the `size` pixels from `start` on are needed.
    Return the slice of source pixels from which the needed pixels are computed, and the fractional
    positions in the slice at which the needed pixels begin and end.
    """
    scale = old / new
    begin, end = start * scale, min((start + size) * scale, old)
    margin = math.ceil(SUPPORT * max(1, scale)) + 1
    first = max(0, int(begin) - margin)
    return slice(first, min(old, math.ceil(end) + margin)), begin - first, end - first


def random_crop_box(
    picture: Picture,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    random: np.random.Generator,
) -> Box:
    """Sample a random rectangle of a picture, like torchvision's RandomResizedCrop.

    `scale` is the range of the rectangle's area, as a share of the picture's area. `ratio` is the
    range of width divided by height.
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


def crop_and_resize(picture: Picture, box: Box, size: int, reduce: bool = False) -> np.ndarray:
    """Crop a box and resize it to a square, uint8 (size, size, channels), by bicubic resampling.

    Torchvision's resized_crop gives the same result. With `reduce`, a large JPEG may be decoded
    at 1/2, 1/4 or 1/8 of its size. Decoding at a smaller size is faster, and changes the blur of
    the result slightly.
    """
    least = min(box.height, box.width)
    scale = next(s for s in SCALES if s == 1 or (reduce and least >= s * size))
    pixels = picture.pixels(scale)
    if pixels.shape[:2] == (picture.height, picture.width):
        scale = 1  # only a JPEG is decoded smaller
    top, left = box.top // scale, box.left // scale
    bottom, right = -(-(box.top + box.height) // scale), -(-(box.left + box.width) // scale)
    pixels = pixels[top:bottom, left:right]
    if pixels.shape[:2] == (size, size):
        return pixels
    right, bottom = box.left + box.width, box.top + box.height
    edges = (box.left / scale - left, box.top / scale - top,
             right / scale - left, bottom / scale - top)  # fmt: skip
    return from_image(to_image(pixels).resize((size, size), pillow().Resampling.BICUBIC, edges))


def size_to_fit(height: int, width: int, fit: tuple[int, int] | None) -> tuple[int, int]:
    """Return the height and width of an image after `resize_to_fit`."""
    if fit is None:
        return height, width
    factor = min(max(fit) / max(height, width), min(fit) / min(height, width))
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


def resize_to_fit(pixels: np.ndarray, fit: tuple[int, int] | None) -> np.ndarray:
    """Resize pixels bilinearly to the largest size within `fit`, and keep the aspect ratio.

    `fit` limits the longer side and the shorter side, in pixels; None keeps the size.
    """
    height, width = pixels.shape[:2]
    rows, columns = size_to_fit(height, width, fit)
    if (rows, columns) == (height, width):
        return pixels
    bilinear = pillow().Resampling.BILINEAR
    return from_image(to_image(pixels).resize((columns, rows), bilinear))


def to_image(pixels: np.ndarray) -> Any:
    """Convert pixels, uint8 (height, width, 1 or 3), to an image of Pillow."""
    return pillow().fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def from_image(image: Any) -> np.ndarray:
    """Convert an image of Pillow to pixels, uint8 (height, width, channels)."""
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def with_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Convert pixels to 1 or 3 channels: grey is repeated, and colours become luminance."""
    if pixels.shape[2] == channels:
        return pixels
    image = to_image(pixels).convert("L" if channels == 1 else "RGB")
    return from_image(image)


@dataclass(frozen=True)
class InputFormat:
    """Input format of a model's images.

    Attributes:
        size: Height and width in pixels.
        channels: Number of channels, 1 or 3.
        normalisation: A key of `NORMALISATIONS`.
        peak: Largest possible pixel value of the source.
    """

    size: int
    channels: int = 3
    normalisation: str = "half"
    peak: int = 255

    @property
    def blank(self) -> np.ndarray:
        """Image whose normalised pixels are all 0, float32 (channels, size, size)."""
        return np.zeros((self.channels, self.size, self.size), np.float32)

    def normalise(self, pixels: np.ndarray) -> np.ndarray:
        """Normalise uint8 pixels (height, width, channels) to float32 (channels, height, width)."""
        pixels = with_channels(pixels, self.channels)
        found = np.empty((self.channels, *pixels.shape[:2]), np.float32)
        # Channel by channel: a loop over three values, innermost, is twenty times as slow.
        for plane, mean, std in zip(range(self.channels), *self._scale, strict=False):
            np.subtract(pixels[..., plane], mean, out=found[plane])
            found[plane] /= std
        return found

    def restore(self, image: np.ndarray) -> np.ndarray:
        """Convert a normalised image to pixels for a display, uint8 (height, width, channels).

        The pixel value `peak` becomes 255.
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
    """Transform of validation images: resize the shorter side to `resize`, and crop the centre."""

    input_format: InputFormat
    resize: int

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        return self.input_format.normalise(
            centre_crop(picture, self.input_format.size, self.resize)
        )


def validation_transform(data: Any, input_format: InputFormat) -> CentreCrop:
    """Return the transform of validation images; `data` is a configuration with `resize`.

    Raises:
        ValueError: If the model's image size exceeds `data.resize`.
    """
    resize = data.resize or input_format.size
    if resize < input_format.size:
        raise ValueError(f"data.resize ({resize}) must be at least model.image_size "
                         f"({input_format.size})")  # fmt: skip
    return CentreCrop(input_format, resize)
