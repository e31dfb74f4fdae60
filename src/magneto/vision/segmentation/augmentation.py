"""Random changes of an image together with its mask: size, crop, mirror image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from magneto.vision.decoding import pillow
from magneto.vision.geometry import from_image, to_image
from magneto.vision.segmentation.config import IGNORED, SegmentationDataConfig
from magneto.vision.segmentation.data import keep_ratio_size
from magneto.vision.transforms import Reading

TRIES = 10


@dataclass(frozen=True)
class CropPair:
    """Resizes, crops and mirrors an image and its mask alike."""

    data: SegmentationDataConfig
    reading: Reading
    size: tuple[int, int]

    def __call__(
        self, pixels: np.ndarray, mask: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the image as the model reads it, and its mask."""
        pixels, mask = self.resized(pixels, mask, random)
        place = self.place(mask, random)
        pixels, mask = pixels[place], mask[place]
        if random.random() < self.data.flip:
            pixels, mask = pixels[:, ::-1], mask[:, ::-1]
        image = self.reading.normalise(np.ascontiguousarray(pixels))
        more = [wanted - there for wanted, there in zip(self.size, mask.shape, strict=True)]
        below = ((0, more[0]), (0, more[1]))
        return np.pad(image, ((0, 0), *below)), np.pad(mask, below, constant_values=IGNORED)

    def resized(
        self, pixels: np.ndarray, mask: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Resize both by a random factor: pixels bilinear, classes by the nearest."""
        factor = random.uniform(*self.data.resize_ratio)
        scale = self.data.scale or (max(mask.shape), min(mask.shape))
        height, width = keep_ratio_size(mask.shape, [side * factor for side in scale])
        ways = pillow().Resampling
        image = to_image(pixels).resize((width, height), ways.BILINEAR)
        classes = pillow().fromarray(mask).resize((width, height), ways.NEAREST)
        return from_image(image), np.asarray(classes)

    def place(self, mask: np.ndarray, random: np.random.Generator) -> tuple[slice, slice]:
        """Draw a crop in which no class has too much, if one is found in `TRIES`."""
        place = (slice(0), slice(0))
        for _ in range(TRIES):
            room = [max(there - size, 0) for there, size in zip(mask.shape, self.size, strict=True)]
            top, left = (int(random.integers(more + 1)) for more in room)
            place = slice(top, top + self.size[0]), slice(left, left + self.size[1])
            counts = np.bincount(mask[place].ravel(), minlength=256)[:IGNORED]
            several = np.count_nonzero(counts) > 1
            if several and counts.max() < self.data.category_max_ratio * counts.sum():
                break
        return place
