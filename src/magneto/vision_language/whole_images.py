"""What is done to an image that a text is about: all of it is made a square, nothing is cut off.

A text may speak of what is at an edge. So BEiT-3's fine-tuning reads validation images, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from magneto.vision.augmentation import Augmentation
from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import Picture, PixelPicture
from magneto.vision.transforms import Box, Reading, cut


def squared(picture: Picture, size: int) -> np.ndarray:
    """Return all of a picture, resized, as uint8 (size, size, channels)."""
    return cut(picture, Box(0, 0, picture.height, picture.width), size)


@dataclass(frozen=True)
class WholeImage:
    """What validation images go through.

    Attributes:
        reading: The form in which the model reads them.
    """

    reading: Reading

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Transform a picture; nothing is drawn."""
        return self.reading.normalise(squared(picture, self.reading.size))


@dataclass(frozen=True)
class WholeImageAugmentation:
    """What training images go through.

    Attributes:
        reading: The form in which the model reads them.
        config: What is done. "centre" is all of the image here; "random_resized" cuts out a part.
    """

    reading: Reading
    config: AugmentationConfig

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Transform a picture."""
        if self.config.crop == "centre":
            picture = PixelPicture(squared(picture, self.reading.size))
        return Augmentation(self.reading, self.config)(picture, random)
