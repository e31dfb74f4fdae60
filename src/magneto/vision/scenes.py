"""Scenes with masks, composed of scikit-learn's real digits: segmentation without a network."""

from __future__ import annotations

import numpy as np

from magneto.vision.builtin import digits
from magneto.vision.geometry import from_image, to_image
from magneto.vision.images import PixelStore
from magneto.vision.listing import Listing, unlabelled

SIZE = 48
SCENES = {"train": 1600, "validation": 400}
# Digits of a scene, and their height and width in pixels.
MOST_DIGITS = 4
DIGIT_SIZES = (12, 24)
# A digit's pixel is ink above this share of black.
INK = 0.4
NOISE = 12.0
CLASSES = ["background", *map(str, range(10))]


def scenes() -> dict[str, Listing]:
    """Return scenes of 48 x 48 pixels in colour, and masks of 11 classes: background and digits.

    A mask has 0 for the background and the digit + 1. Scenes to validate on are of other digits
    than those to train on: one in five of the digits is theirs. They are the same for every seed.

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed; names the extra that has it.
    """
    known = digits()
    pixels = np.stack([known.images.open(i).pixels() for i in range(len(known.images))])
    held = np.arange(len(pixels)) % 5 == 0
    return {
        "train": _compose(pixels[~held], known.labels[~held], SCENES["train"], 1),
        "validation": _compose(pixels[held], known.labels[held], SCENES["validation"], 2),
    }


def _compose(pixels: np.ndarray, labels: np.ndarray, count: int, seed: int) -> Listing:
    images = np.zeros((count, SIZE, SIZE, 3), np.uint8)
    masks = np.zeros((count, SIZE, SIZE), np.uint8)
    for number in range(count):
        random = np.random.default_rng([seed, number])
        images[number], masks[number] = _scene(pixels, labels, random)
    found = unlabelled(PixelStore(images), PixelStore(masks))
    return Listing(found.images, found.labels, CLASSES, found.masks)


def _scene(
    pixels: np.ndarray, labels: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return an image and its mask: later digits cover earlier ones."""
    mask = np.zeros((SIZE, SIZE), np.uint8)
    image = random.uniform(0, 110, 3) + np.zeros((SIZE, SIZE, 3))
    for _ in range(random.integers(1, MOST_DIGITS + 1)):
        which, size = random.integers(len(pixels)), int(random.integers(*DIGIT_SIZES))
        top, left = random.integers(0, SIZE - size + 1, 2)
        part = slice(top, top + size), slice(left, left + size)
        ink = from_image(to_image(pixels[which]).resize((size, size))) / pixels.max()
        image[part] += ink * (random.uniform(130, 255, 3) - image[part])
        mask[part][ink[..., 0] > INK] = labels[which] + 1
    image += random.normal(0, NOISE, image.shape)
    return image.clip(0, 255).astype(np.uint8), mask
