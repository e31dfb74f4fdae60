"""Random erasing (arXiv 1708.04896): a rectangle of an image becomes noise."""

from __future__ import annotations

import math

import numpy as np

# Range of the rectangle's share of the image, and of its height by its width, as in timm.
AREA = (0.02, 1 / 3)
SHAPE = (0.3, 1 / 0.3)
TRIES = 10


def erased(image: np.ndarray, probability: float, random: np.random.Generator) -> np.ndarray:
    """Return an image with a rectangle of normal noise, one number per pixel and channel.

    Args:
        image: Normalised, float32 (channels, height, width); changed in place.
        probability: Of erasing at all.
        random: Draws.
    """
    if random.random() >= probability:
        return image
    channels, height, width = image.shape
    for _ in range(TRIES):
        area = height * width * random.uniform(*AREA)
        shape = math.exp(random.uniform(math.log(SHAPE[0]), math.log(SHAPE[1])))
        high, wide = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < high < height and 0 < wide < width:
            top, left = random.integers(height - high + 1), random.integers(width - wide + 1)
            noise = random.standard_normal((channels, high, wide), np.float32)
            image[:, top : top + high, left : left + wide] = noise
            return image
    return image
