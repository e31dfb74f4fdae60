"""Augmentation of training images: crops, flips, colour jitter, RandAugment, random erasing.

RandAugment (arXiv 1909.13719) has the operations of timm's "rand-m9-mstd0.5-inc1". Two operations
are sampled for each image, and each is applied with probability 0.5. The magnitude is sampled from
a normal distribution, and clipped to the range from 0 to 10.

Images with masks are augmented as in mmsegmentation's recipe for ADE20k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from magneto.vision.config import IGNORED, AugmentationConfig, PairedAugmentationConfig
from magneto.vision.decoding import Picture, pillow
from magneto.vision.transforms import (
    InputFormat,
    centre_crop,
    crop_and_resize,
    from_image,
    random_crop_box,
    size_to_fit,
    to_image,
)

# Random erasing as in timm: range of the rectangle's area as a share of the image's, range of its
# height divided by its width, and attempts to draw a rectangle that fits.
AREA, SHAPE, TRIES = (0.02, 1 / 3), (0.3, 1 / 0.3), 10
# RandAugment: largest magnitude, operations for each image, probability of each.
LARGEST, DRAWN, PROBABILITY = 10.0, 2, 0.5
# Colour of pixels from outside of the image: ImageNet's mean.
FILL = (124, 116, 104)
# Range of a random crop's width divided by its height (arXiv 1409.4842, section 6).
RATIO = (3 / 4, 4 / 3)
# Fields of colour jitter, and the classes of Pillow's ImageEnhance for them.
COLOURS = {"brightness": "Brightness", "contrast": "Contrast", "saturation": "Color", "hue": ""}
# Images with masks: attempts at a crop. Photometric distortion: largest change of brightness, range
# of the factors of contrast and saturation, largest shift of the hue.
CROPS = 10
BRIGHTNESS, FACTORS, HUE = 32, (0.5, 1.5), 0.1
Operation = Callable[[Any, float, np.random.Generator], Any]
"""Function that maps an image, a strength from 0 to 1, and a random generator to an image."""


def colour_jitter(image: Any, config: AugmentationConfig, random: np.random.Generator) -> Any:
    """Change brightness, contrast, saturation and hue in random order, like torchvision."""
    changes = [(name, strength) for name in COLOURS if (strength := getattr(config, name))]
    for which in random.permutation(len(changes)):
        name, strength = changes[which]
        if name == "hue":
            image = adjust_colour(image, random.uniform(-1, 1) * strength)
        else:
            factor = random.uniform(max(0.0, 1 - strength), 1 + strength)
            image = enhance(image, COLOURS[name], factor)
    return image


def enhance(image: Any, what: str, factor: float) -> Any:
    return getattr(pillow("ImageEnhance"), what)(image).enhance(factor)


def adjust_colour(image: Any, hue: float, saturation: float = 1.0) -> Any:
    """Shift the hue by a fraction of the colour circle, and multiply the saturation by a factor.

    Grey images do not change.
    """
    if image.mode == "L" or (hue == 0 and saturation == 1):
        return image
    hues, saturations, value = image.convert("HSV").split()
    hues = hues.point([(level + round(hue * 255)) % 256 for level in range(256)])
    saturations = saturations.point([min(255, round(level * saturation)) for level in range(256)])
    return pillow().merge("HSV", (hues, saturations, value)).convert("RGB")


def random_erasing(
    image: np.ndarray, probability: float, random: np.random.Generator
) -> np.ndarray:
    """Replace a random rectangle by normal noise, with probability `probability`.

    The image, float32 (channels, height, width), is changed in place.
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


def rand_augment(image: Any, config: AugmentationConfig, random: np.random.Generator) -> Any:
    for which in random.integers(len(OPERATIONS), size=DRAWN):
        if random.random() >= PROBABILITY:
            continue
        drawn = random.normal(config.rand_augment, config.rand_augment_std)
        magnitude = np.clip(drawn, 0, LARGEST)
        image = list(OPERATIONS.values())[which](image, magnitude / LARGEST, random)
    return image


def _signed(largest: float, change: Callable[[Any, float], Any]) -> Operation:

    def operation(image: Any, strength: float, random: np.random.Generator) -> Any:
        value = largest * strength
        return change(image, -value if random.random() < 0.5 else value)

    return operation


def _factor(what: str) -> Operation:
    return _signed(0.9, lambda image, value: enhance(image, what, max(0.1, 1 + value)))


def _affine(image: Any, matrix: tuple[float, ...]) -> Any:
    """Make pixel (x, y) from pixel (a x + b y + c, d x + e y + f); `matrix` is (a, ..., f)."""
    library = pillow()
    how, kind = library.Resampling.BICUBIC, library.Transform.AFFINE
    return image.transform(image.size, kind, matrix, how, fillcolor=_fill(image))


def _fill(image: Any) -> Any:
    return FILL if image.mode == "RGB" else round(sum(FILL) / 3)


def _rotate(image: Any, degrees: float) -> Any:
    return image.rotate(degrees, pillow().Resampling.BICUBIC, fillcolor=_fill(image))


def _posterise(image: Any, strength: float, random: np.random.Generator) -> Any:
    """Posterise: each colour channel keeps 4 bits at strength 0, and 0 bits at strength 1."""
    kept = 0xFF & ~(0xFF >> (4 - int(4 * strength)))
    return image.point([level & kept for level in range(256)] * len(image.getbands()))


def _solarise_add(image: Any, strength: float, random: np.random.Generator) -> Any:
    added = min(128, int(110 * strength))
    table = [min(255, level + added) if level < 128 else level for level in range(256)]
    return image.point(table * len(image.getbands()))


OPERATIONS: dict[str, Operation] = {
    "autocontrast": lambda image, strength, random: pillow("ImageOps").autocontrast(image),
    "equalise": lambda image, strength, random: pillow("ImageOps").equalize(image),
    "invert": lambda image, strength, random: pillow("ImageOps").invert(image),
    "rotate": _signed(30, _rotate),
    "posterise": _posterise,
    "solarise": lambda image, strength, random: pillow("ImageOps").solarize(
        image, 256 - int(256 * strength)
    ),
    "solarise_add": _solarise_add,
    "colour": _factor("Color"),
    "contrast": _factor("Contrast"),
    "brightness": _factor("Brightness"),
    "sharpness": _factor("Sharpness"),
    "shear_x": _signed(0.3, lambda image, x: _affine(image, (1, x, 0, 0, 1, 0))),
    "shear_y": _signed(0.3, lambda image, y: _affine(image, (1, 0, 0, y, 1, 0))),
    "translate_x": _signed(0.45, lambda image, x: _affine(image, (1, 0, x * image.width, 0, 1, 0))),
    "translate_y": _signed(
        0.45, lambda image, y: _affine(image, (1, 0, 0, 0, 1, y * image.height))
    ),
}


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training images without masks."""

    input_format: InputFormat
    config: AugmentationConfig

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        image = self.input_format.normalise(self.pixels(picture, random))
        return random_erasing(image, self.config.erasing, random) if self.config.erasing else image

    def pixels(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Return the augmented picture, uint8 (size, size, channels).

        Normalisation and erasing are not applied.
        """
        config, size = self.config, self.input_format.size
        if config.crop == "centre":
            found = centre_crop(picture, size, size)
        else:
            box = random_crop_box(picture, config.crop_scale, RATIO, random)
            found = crop_and_resize(picture, box, size, reduce=True)
        if config.flip and random.random() < config.flip:
            found = found[:, ::-1]
        if not (config.rand_augment or any(getattr(config, name) for name in COLOURS)):
            return found
        image = colour_jitter(to_image(np.ascontiguousarray(found)), config, random)
        return from_image(rand_augment(image, config, random) if config.rand_augment else image)


@dataclass(frozen=True)
class PairedAugmentation:
    """Augmentation of a training image together with its mask.

    The image is resized once, to the size that `size_to_fit` returns for the limits `fit`, times a
    random factor.
    """

    input_format: InputFormat
    config: PairedAugmentationConfig
    fit: tuple[int, int] | None = None

    def __call__(
        self, pixels: np.ndarray, mask: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the augmented image and mask.

        The image is float32 (channels, size, size), and the mask is uint8 (size, size). Padding is
        0 in the image and `IGNORED` in the mask. `pixels` are uint8 (height, width, channels), and
        `mask` is (height, width).
        """
        height, width = size_to_fit(mask.shape[0], mask.shape[1], self.fit)
        factor = random.uniform(*self.config.resize)
        height, width = max(1, round(height * factor)), max(1, round(width * factor))
        top, left, part = self._crop(mask, height, width, random)
        image = resize_part(pixels, height, width, (top, left, *part.shape), "BILINEAR")
        if random.random() < self.config.flip:
            image, part = image[:, ::-1], part[:, ::-1]
        image = photometric_distortion(np.ascontiguousarray(image), self.config.photometric, random)
        found = self.input_format.blank
        places = np.full(found.shape[1:], IGNORED, np.uint8)
        found[:, : part.shape[0], : part.shape[1]] = self.input_format.normalise(image)
        places[: part.shape[0], : part.shape[1]] = part
        return found, places

    def _crop(
        self, mask: np.ndarray, height: int, width: int, random: np.random.Generator
    ) -> tuple[int, int, np.ndarray]:
        size, drawn = self.input_format.size, (0, 0, mask)
        for _ in range(CROPS if self.config.largest_share < 1 else 1):
            top = int(random.integers(max(height - size, 0) + 1))
            left = int(random.integers(max(width - size, 0) + 1))
            box = top, left, min(size, height), min(size, width)
            resized = resize_part(mask[..., None], height, width, box, "NEAREST")
            drawn = top, left, resized[..., 0]
            counts = np.bincount(drawn[2][drawn[2] != IGNORED], minlength=1)
            if counts.max() < self.config.largest_share * counts.sum():
                break
        return drawn


def resize_part(
    pixels: np.ndarray, height: int, width: int, part: tuple[int, int, int, int], how: str
) -> np.ndarray:
    """Resize pixels to (`height`, `width`), and return a part of the result.

    `part` is (top, left, height, width). `how` names a resampling filter of Pillow.
    """
    top, left, high, wide = part
    down, across = pixels.shape[0] / height, pixels.shape[1] / width
    box = (left * across, top * down, min((left + wide) * across, pixels.shape[1]),
           min((top + high) * down, pixels.shape[0]))  # fmt: skip
    return from_image(to_image(pixels).resize((wide, high), pillow().Resampling[how], box))


def photometric_distortion(
    pixels: np.ndarray, probability: float, random: np.random.Generator
) -> np.ndarray:
    """Change each of brightness, contrast, saturation and hue with the given probability.

    As in SSD (arXiv 1512.02325), the contrast changes either before or after saturation and hue.
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
    found = from_image(adjust_colour(image, hue, saturation))
    return found if early else (found * np.float32(contrast)).clip(0, 255).astype(np.uint8)
