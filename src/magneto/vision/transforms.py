"""What is done to a picture on its way to the model: in training at random, in validation fixed.

A transform is a function of a picture and a generator; it returns float32 (channels, height,
width). Randomness comes from the generator alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from magneto.vision.config import ImageDataConfig
from magneto.vision.decoding import Picture
from magneto.vision.geometry import centre_box, cut, with_channels

# Mean and standard deviation that are taken out, of pixels from 0 to 1.
NORMALISATIONS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


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
        mean, std = (
            np.array(values[: self.channels], np.float32)[:, None, None] * np.float32(self.peak)
            for values in NORMALISATIONS[self.normalisation]
        )
        return (with_channels(pixels, self.channels).transpose(2, 0, 1) - mean) / std


@dataclass(frozen=True)
class CentreCrop:
    """Resizes the shorter side, cuts out the middle: what validation images go through.

    Attributes:
        reading: The form in which the model reads them.
        resize: The shorter side, at least the form's size.
    """

    reading: Reading
    resize: int

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Transform a picture; nothing is drawn."""
        box = centre_box(picture, self.reading.size, self.resize)
        return self.reading.normalise(cut(picture, box, self.reading.size))


def validation_transform(data: ImageDataConfig, reading: Reading) -> CentreCrop:
    """Return what is done to validation images.

    Raises:
        ValueError: If they would be resized below the size that is cut out.
    """
    resize = data.resize or reading.size
    if resize < reading.size:
        raise ValueError(f"data.resize ({resize}) is below the model's image_size ({reading.size})")
    return CentreCrop(reading, resize)


def training_transform(data: ImageDataConfig, reading: Reading) -> CentreCrop:
    """Return what is done to training images."""
    return CentreCrop(reading, reading.size)
