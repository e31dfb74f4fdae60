"""What is done to training images at random: crops, colours, RandAugment, erasing, mixing.

RandAugment (arXiv 1909.13719) has the operations and strengths of timm's increasing set, which timm
calls "rand-m9-mstd0.5-inc1": for each of two operations, drawn with replacement and applied with
probability 0.5, a magnitude is drawn around 9 and cut to 0 to 10. Mixup is arXiv 1710.09412, CutMix
arXiv 1905.04899.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import Picture, pillow
from magneto.vision.transforms import Reading, centre_crop, cut, from_image, random_box, to_image

# Of random erasing: ranges of the rectangle's share of the image, and of its height by its width,
# as in timm; draws of one that fits.
AREA, SHAPE, TRIES = (0.02, 1 / 3), (0.3, 1 / 0.3), 10
# Of RandAugment: the largest magnitude, and how likely an operation that is drawn is applied.
LARGEST, PROBABILITY = 10.0, 0.5
# Of what comes from outside of the image: ImageNet's mean colour.
FILL = (124, 116, 104)
Operation = Callable[[Any, float, np.random.Generator], Any]
"""From an image, a strength from 0 to 1 and a generator, for the sign, to an image."""


@dataclass(frozen=True)
class ColourJitter:
    """Brightness, contrast, saturation and hue, each by a factor of its own, in random order.

    As torchvision's ColorJitter. A strength of 0 leaves that one out.

    Attributes:
        brightness: Multiplied by 1 - it to 1 + it, and 0 at least.
        contrast: Likewise.
        saturation: Likewise.
        hue: Turned by up to this part of the circle, either way.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __call__(self, image: Any, random: np.random.Generator) -> Any:
        """Change an image."""
        strengths = {"Brightness": self.brightness, "Contrast": self.contrast,
                     "Color": self.saturation, "Hue": self.hue}  # fmt: skip
        changes = [(name, strength) for name, strength in strengths.items() if strength]
        for which in random.permutation(len(changes)):
            name, strength = changes[which]
            if name == "Hue":
                image = turned_hue(image, random.uniform(-1, 1) * strength)
            else:
                factor = random.uniform(max(0.0, 1 - strength), 1 + strength)
                image = enhanced(image, name, factor)
        return image


def enhanced(image: Any, what: str, factor: float) -> Any:
    """Return an image with one thing multiplied by a factor: 1 changes nothing.

    Args:
        image: RGB or grey.
        what: "Brightness", "Contrast", "Color" or "Sharpness": a class of Pillow's ImageEnhance.
        factor: By which.
    """
    return getattr(pillow("ImageEnhance"), what)(image).enhance(factor)


def turned_hue(image: Any, part: float) -> Any:
    """Return an image whose hue is turned by a part of the circle; a grey one has none."""
    if image.mode == "L" or part == 0:
        return image
    hue, saturation, value = image.convert("HSV").split()
    hue = hue.point([(level + round(part * 255)) % 256 for level in range(256)])
    return pillow().merge("HSV", (hue, saturation, value)).convert("RGB")


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


@dataclass(frozen=True)
class RandAugment:
    """Draws operations and applies them.

    Attributes:
        magnitude: Mean of the magnitudes, 0 to 10.
        std: Their standard deviation.
        operations: How many are drawn.
    """

    magnitude: float = 9.0
    std: float = 0.5
    operations: int = 2

    def __call__(self, image: Any, random: np.random.Generator) -> Any:
        """Change an image, RGB or grey."""
        for which in random.integers(len(OPERATIONS), size=self.operations):
            if random.random() >= PROBABILITY:
                continue
            magnitude = np.clip(random.normal(self.magnitude, self.std), 0, LARGEST)
            image = list(OPERATIONS.values())[which](image, magnitude / LARGEST, random)
        return image


def _signed(value: float, random: np.random.Generator) -> float:
    return -value if random.random() < 0.5 else value


def _factor(what: str) -> Operation:
    def change(image: Any, strength: float, random: np.random.Generator) -> Any:
        return enhanced(image, what, max(0.1, 1 + _signed(0.9 * strength, random)))

    return change


def _affine(image: Any, matrix: tuple[float, ...]) -> Any:
    """Move pixels: the one at (x, y) comes from (a x + b y + c, d x + e y + f)."""
    library = pillow()
    how, kind = library.Resampling.BICUBIC, library.Transform.AFFINE
    return image.transform(image.size, kind, matrix, how, fillcolor=_fill(image))


def _fill(image: Any) -> Any:
    return FILL if image.mode == "RGB" else round(sum(FILL) / 3)


def _rotate(image: Any, strength: float, random: np.random.Generator) -> Any:
    how = pillow().Resampling.BICUBIC
    return image.rotate(_signed(30 * strength, random), how, fillcolor=_fill(image))


def _posterise(image: Any, strength: float, random: np.random.Generator) -> Any:
    """Keep 4 bits of a colour at strength 0, none at 1."""
    kept = 0xFF & ~(0xFF >> (4 - int(4 * strength)))
    return image.point([level & kept for level in range(256)] * len(image.getbands()))


def _solarise(image: Any, strength: float, random: np.random.Generator) -> Any:
    return pillow("ImageOps").solarize(image, 256 - int(256 * strength))


def _solarise_add(image: Any, strength: float, random: np.random.Generator) -> Any:
    """Add to the pixels of the darker half."""
    added = min(128, int(110 * strength))
    table = [min(255, level + added) if level < 128 else level for level in range(256)]
    return image.point(table * len(image.getbands()))


OPERATIONS: dict[str, Operation] = {
    "autocontrast": lambda image, strength, random: pillow("ImageOps").autocontrast(image),
    "equalise": lambda image, strength, random: pillow("ImageOps").equalize(image),
    "invert": lambda image, strength, random: pillow("ImageOps").invert(image),
    "rotate": _rotate,
    "posterise": _posterise,
    "solarise": _solarise,
    "solarise_add": _solarise_add,
    "colour": _factor("Color"),
    "contrast": _factor("Contrast"),
    "brightness": _factor("Brightness"),
    "sharpness": _factor("Sharpness"),
    "shear_x": lambda image, strength, random: _affine(
        image, (1, _signed(0.3 * strength, random), 0, 0, 1, 0)
    ),
    "shear_y": lambda image, strength, random: _affine(
        image, (1, 0, 0, _signed(0.3 * strength, random), 1, 0)
    ),
    "translate_x": lambda image, strength, random: _affine(
        image, (1, 0, _signed(0.45 * strength, random) * image.width, 0, 1, 0)
    ),
    "translate_y": lambda image, strength, random: _affine(
        image, (1, 0, 0, 0, 1, _signed(0.45 * strength, random) * image.height)
    ),
}


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
        jitter = ColourJitter(config.brightness, config.contrast, config.saturation, config.hue)
        if jitter == ColourJitter() and not config.rand_augment:
            return found
        image = jitter(to_image(np.ascontiguousarray(found)), random)
        if config.rand_augment:
            std, operations = config.rand_augment_std, config.rand_augment_operations
            image = RandAugment(config.rand_augment, std, operations)(image, random)
        return from_image(image)


@dataclass(frozen=True)
class Mixing:
    """How a pair is mixed.

    Attributes:
        share: Of an image's own label; its neighbour's has the rest.
        box: Rows and columns (top, bottom, left, right) that come from the neighbour, by CutMix;
            None mixes all pixels by `share`.
    """

    share: float = 1.0
    box: tuple[int, int, int, int] | None = None


def draw_mixing(
    random: np.random.Generator, mixup: float, cutmix: float, height: int, width: int
) -> Mixing:
    """Draw how a pair is mixed: by one of the two, each with probability 0.5 where both are on.

    Args:
        random: Draws.
        mixup: Alpha of the Beta distribution of the share (0.8 in the paper's fine-tuning); 0 is
            off.
        cutmix: Likewise of the share of pixels that stay (1.0); 0 is off.
        height: Of the images.
        width: Of the images.
    """
    if not mixup and not cutmix:
        return Mixing()
    cuts = random.random() < 0.5 if mixup and cutmix else bool(cutmix)
    alpha = cutmix if cuts else mixup
    share = float(random.beta(alpha, alpha))
    if not cuts:
        return Mixing(share)
    high, wide = int(height * math.sqrt(1 - share)), int(width * math.sqrt(1 - share))
    row, column = int(random.integers(height)), int(random.integers(width))
    top, bottom = max(0, row - high // 2), min(height, row + high // 2)
    left, right = max(0, column - wide // 2), min(width, column + wide // 2)
    # What lies outside of the image is not cut: the share is that of the pixels.
    return Mixing(
        1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right)
    )


def mixed(images: Tensor, targets: Tensor, how: Sequence[Mixing]) -> tuple[Tensor, Tensor]:
    """Mix the pairs of a batch; the last image of an odd number stays as it is.

    Args:
        images: (batch, channels, height, width).
        targets: (batch, classes), as `soft_targets` makes them.
        how: Of each pair, batch / 2 rounded up.

    Returns:
        Images and targets.
    """
    images, targets = images.clone(), targets.clone()
    for pair, mixing in enumerate(how[: len(images) // 2]):
        rows = slice(2 * pair, 2 * pair + 2)
        targets[rows] = targets[rows].lerp(targets[rows].flip(0), 1 - mixing.share)
        if mixing.box is None:
            images[rows] = images[rows].lerp(images[rows].flip(0), 1 - mixing.share)
        else:
            top, bottom, left, right = mixing.box
            part = images[rows, :, top:bottom, left:right]
            images[rows, :, top:bottom, left:right] = part.flip(0)
    return images, targets


def soft_targets(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Return the shares of classes, float32 (batch, classes), of labels (batch).

    Args:
        labels: Numbers of classes.
        classes: How many there are.
        smoothing: Share that is spread over all classes evenly (label smoothing).
    """
    one_hot = torch.nn.functional.one_hot(labels, classes).float()
    return one_hot * (1 - smoothing) + smoothing / classes


@dataclass(frozen=True)
class PairMixing:
    """Gives a batch its targets, and mixes its pairs: images 0 and 1 with each other, 2 and 3, ...

    So a batch that is cut in pieces of an even number of images, for ranks or micro-batches, is
    mixed as the whole is. Mixed on a worker: to a GPU it is hundreds of small operations.

    Attributes:
        seed: Of what is drawn.
        mixup: As in `draw_mixing`.
        cutmix: Likewise.
        classes: How many there are.
        smoothing: As in `soft_targets`.
    """

    seed: int
    mixup: float
    cutmix: float
    classes: int
    smoothing: float

    def __call__(
        self, batch: dict[str, Tensor], numbers: np.ndarray, draws: np.ndarray
    ) -> dict[str, Tensor]:
        """Return the batch with "targets", (batch, classes).

        Args:
            batch: With "images" and "labels".
            numbers: Of its examples.
            draws: Of its examples.
        """
        targets = soft_targets(batch["labels"], self.classes, self.smoothing)
        if not (self.mixup or self.cutmix):
            return {**batch, "targets": targets}
        size = batch["images"].shape[2:]
        firsts = zip(draws[::2].tolist(), numbers[::2].tolist(), strict=True)
        how = [
            draw_mixing(
                np.random.default_rng([self.seed, draw, number, 0, 1]),
                self.mixup,
                self.cutmix,
                *size,
            )
            for draw, number in firsts
        ]
        images, targets = mixed(batch["images"], targets, how)
        return {**batch, "images": images, "targets": targets}
