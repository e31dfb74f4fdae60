"""What a column of images has in a row, opened; and a column of images that are decoded already."""

from __future__ import annotations

from typing import Any

import numpy as np

from magneto.data.media import MediaColumn
from magneto.vision.decoding import EncodedPicture, Picture, PixelPicture, decode_mask


class Pixels(MediaColumn):
    """A column of decoded images in memory.

    Args:
        pixels: uint8 (count, height, width, channels); of masks (count, height, width).
        peak: Value of the brightest pixel there can be.
    """

    def __init__(self, pixels: np.ndarray, peak: int = 255) -> None:
        self.all, self.peak = pixels, peak

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, number: int) -> PixelPicture:
        return PixelPicture(self.all[number])

    def key(self, number: int) -> str:
        """Return the number."""
        return str(number)

    def name(self, number: int) -> str:
        """Return the number in words."""
        return f"image {number}"

    def sizes(self) -> np.ndarray:
        """Return the bytes of each image."""
        return np.full(len(self.all), self.all[0].nbytes, np.int64)

    def read(self, number: int) -> bytes:
        """Return the pixels as bytes."""
        return self.all[number].tobytes()


def open_image(value: Any) -> Picture:
    """Open what a column of images has in a row, whose pixels can then be decoded.

    Raises:
        BrokenImage: If it is no image.
        OSError: If it can't be read.
    """
    return value if isinstance(value, PixelPicture) else EncodedPicture(value.read())


def open_mask(value: Any) -> np.ndarray:
    """Return what a column of masks has in a row: numbers of classes, uint8 (height, width).

    Raises:
        BrokenImage: If it is no mask.
        OSError: If it can't be read.
    """
    return value.pixels() if isinstance(value, PixelPicture) else decode_mask(value.read())
