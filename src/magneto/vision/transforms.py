"""What is done to a picture on its way to the model: in training at random, in validation fixed.

A transform is a function of a picture and a generator; it returns float32 (channels, height,
width), or two of them. Randomness comes from the generator alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from magneto.vision.colour import ColourJitter
from magneto.vision.config import AugmentationConfig, ImageDataConfig
from magneto.vision.decoding import Picture
from magneto.vision.erasing import erased
from magneto.vision.geometry import (
    centre_crop,
    cut,
    from_image,
    random_box,
    to_image,
    with_channels,
)
from magneto.vision.rand_augment import RandAugment

# Mean and standard deviation that are taken out, of pixels from 0 to 1.
NORMALISATIONS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}

Step = Callable[[Any, np.random.Generator], Any]
"""From an image of Pillow's and a generator to an image of the same size."""


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
    """Resizes the shorter side, cuts out the middle: what validation images go through.

    Attributes:
        reading: The form in which the model reads them.
        resize: The shorter side, at least the form's size.
    """

    reading: Reading
    resize: int

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Transform a picture; nothing is drawn."""
        return self.reading.normalise(centre_crop(picture, self.reading.size, self.resize))


@dataclass(frozen=True)
class Augmentation:
    """What training images go through: crop, mirror, colours, RandAugment; then erasing.

    Attributes:
        reading: The form in which the model reads them.
        config: What is done, and how much.
    """

    reading: Reading
    config: AugmentationConfig

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Transform a picture."""
        image = self.reading.normalise(self.pixels(picture, random))
        return erased(image, self.config.erasing, random) if self.config.erasing else image

    def pixels(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Return an augmented picture, uint8 (size, size, channels), before it is normalised."""
        config, size = self.config, self.reading.size
        if config.crop == "centre":
            found = centre_crop(picture, size, size)
        else:
            box = random_box(picture, config.crop_scale, config.crop_ratio, random)
            found = cut(picture, box, size, reduce=True)
        if config.flip and random.random() < config.flip:
            found = found[:, ::-1]
        steps = self._steps
        if not steps:
            return found
        image = to_image(np.ascontiguousarray(found))
        for step in steps:
            image = step(image, random)
        return from_image(image)

    @property
    def _steps(self) -> list[Step]:
        config = self.config
        jitter = ColourJitter(config.brightness, config.contrast, config.saturation, config.hue)
        several = RandAugment(
            config.rand_augment, config.rand_augment_std, config.rand_augment_operations
        )
        return [step for step, on in ((jitter, jitter != ColourJitter()),
                                      (several, config.rand_augment)) if on]  # fmt: skip


@dataclass(frozen=True)
class TwoViews:
    """One augmented picture in two forms: for a model, and for the tokenizer of its targets.

    Both show the same crop with the same colours (BEiT v2's pre-training); nothing is erased.

    Attributes:
        augmentation: What is done, and the first form.
        second: The second form, of the same size: [-1, 1] for a tokenizer.
    """

    augmentation: Augmentation
    second: Reading

    def __call__(
        self, picture: Picture, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Transform a picture."""
        pixels = self.augmentation.pixels(picture, random)
        return self.augmentation.reading.normalise(pixels), self.second.normalise(pixels)


def training_transform(data: ImageDataConfig, reading: Reading) -> Augmentation:
    """Return what is done to training images."""
    return Augmentation(reading, data.augmentation)


def validation_transform(data: ImageDataConfig, reading: Reading) -> CentreCrop:
    """Return what is done to validation images.

    Raises:
        ValueError: If they would be resized below the size that is cut out.
    """
    resize = data.resize or reading.size
    if resize < reading.size:
        raise ValueError(f"data.resize ({resize}) is below the model's image_size ({reading.size})")
    return CentreCrop(reading, resize)
