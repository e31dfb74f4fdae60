"""What is done to an image and its mask together: the same geometry, colours for the image alone.

As mmsegmentation's training pipeline for ADE20k: a random factor of size, a crop in which no class
has nearly all, a mirror image, photometric distortion; what is missing at an edge is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from magneto.vision.augmentation import turned_hue
from magneto.vision.config import IGNORED, PairedAugmentationConfig
from magneto.vision.decoding import BrokenImage, Picture, pillow
from magneto.vision.transforms import Reading, fitted_size, from_image, to_image

TRIES = 10
# Photometric distortion: what is added to a pixel at most, ranges of factors, part of the circle.
BRIGHTNESS, FACTORS, HUE = 32, (0.5, 1.5), 0.1


@dataclass(frozen=True)
class PairedAugmentation:
    """A training image and its mask.

    Attributes:
        reading: The form in which the model reads images; its size is that of the crop.
        config: What is done, and how much.
    """

    reading: Reading
    config: PairedAugmentationConfig

    def __call__(
        self, picture: Picture, mask: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Transform a picture and its mask.

        Returns:
            float32 (channels, size, size), zero where there is no image; uint8 (size, size),
            `IGNORED` there.

        Raises:
            BrokenImage: If the picture can't be decoded, or the mask is of another size.
        """
        pixels = picture.pixels()
        if pixels.shape[:2] != mask.shape:
            raise BrokenImage(f"its mask is of another size: {mask.shape}, not {pixels.shape[:2]}")
        height, width = fitted_size(mask.shape[0], mask.shape[1], self.config.fit)
        factor = random.uniform(*self.config.resize)
        height, width = max(1, round(height * factor)), max(1, round(width * factor))
        top, left, part = self._crop(mask, height, width, random)
        image = resized_part(pixels, height, width, (top, left, *part.shape))
        if random.random() < self.config.flip:
            image, part = image[:, ::-1], part[:, ::-1]
        image = distorted(np.ascontiguousarray(image), self.config.photometric, random)
        found, places = self.reading.blank, np.full((self.reading.size,) * 2, IGNORED, np.uint8)
        found[:, : part.shape[0], : part.shape[1]] = self.reading.normalise(image)
        places[: part.shape[0], : part.shape[1]] = part
        return found, places

    def _crop(
        self, mask: np.ndarray, height: int, width: int, random: np.random.Generator
    ) -> tuple[int, int, np.ndarray]:
        """Draw a crop of the image resized to (height, width); return its corner and mask."""
        drawn = self._draw(mask, height, width, random)
        for _ in range(TRIES - 1):
            counts = np.bincount(drawn[2][drawn[2] != IGNORED], minlength=1)
            if (counts > 0).sum() > 1 and counts.max() < self.config.largest_share * counts.sum():
                break
            drawn = self._draw(mask, height, width, random)
        return drawn

    def _draw(
        self, mask: np.ndarray, height: int, width: int, random: np.random.Generator
    ) -> tuple[int, int, np.ndarray]:
        size = self.reading.size
        top = int(random.integers(max(height - size, 0) + 1))
        left = int(random.integers(max(width - size, 0) + 1))
        ends = min(size, height), min(size, width)
        return top, left, resized_mask(mask, height, width, (top, left, *ends))


def resized_mask(
    mask: np.ndarray, height: int, width: int, part: tuple[int, int, int, int]
) -> np.ndarray:
    """Return a part (top, left, height, width) of a mask resized to the nearest pixels."""
    top, left, high, wide = part
    rows = ((np.arange(top, top + high) + 0.5) * mask.shape[0] / height).astype(np.int64)
    columns = ((np.arange(left, left + wide) + 0.5) * mask.shape[1] / width).astype(np.int64)
    return mask[rows[:, None], columns]


def resized_part(
    pixels: np.ndarray, height: int, width: int, part: tuple[int, int, int, int]
) -> np.ndarray:
    """Return a part (top, left, height, width) of an image resized bilinearly."""
    top, left, high, wide = part
    down, across = pixels.shape[0] / height, pixels.shape[1] / width
    box = (left * across, top * down, min((left + wide) * across, pixels.shape[1]),
           min((top + high) * down, pixels.shape[0]))  # fmt: skip
    how = pillow().Resampling.BILINEAR
    return from_image(to_image(pixels).resize((wide, high), how, box))


def distorted(pixels: np.ndarray, probability: float, random: np.random.Generator) -> np.ndarray:
    """Change brightness, contrast, saturation and hue, each with a probability.

    Contrast comes before saturation and hue or after them, at random, as in SSD (arXiv 1512.02325).

    Args:
        pixels: uint8 (height, width, channels).
        probability: Of each.
        random: Draws.
    """
    found = pixels.astype(np.float32)
    if random.random() < probability:
        found += random.uniform(-BRIGHTNESS, BRIGHTNESS)
    early = random.random() < 0.5
    contrast = random.uniform(*FACTORS) if random.random() < probability else 1.0
    found = found * (contrast if early else 1.0)
    image = to_image(found.clip(0, 255).astype(np.uint8))
    saturation = random.uniform(*FACTORS) if random.random() < probability else 1.0
    hue = random.uniform(-HUE, HUE) if random.random() < probability else 0.0
    found = from_image(turned_hue(saturated(image, saturation), hue))
    return found if early else (found * np.float32(contrast)).clip(0, 255).astype(np.uint8)


def saturated(image: Any, factor: float) -> Any:
    """Return an image whose saturation is multiplied; a grey one has none."""
    if image.mode == "L" or factor == 1:
        return image
    hue, saturation, value = image.convert("HSV").split()
    saturation = saturation.point([min(255, round(level * factor)) for level in range(256)])
    return pillow().merge("HSV", (hue, saturation, value)).convert("RGB")
