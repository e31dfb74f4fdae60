"""Built-in images that need no network: scikit-learn's digits, and scenes composed of them."""

from __future__ import annotations

import numpy as np

from magneto.data.table import NO_CLASS, Classes, Table, whole_table
from magneto.files import import_extra
from magneto.vision.decoding import Pixels
from magneto.vision.transforms import from_image, to_image

# The digits have 17 levels of grey: as bytes, this far apart.
LEVEL = 15
# Of scenes: height and width in pixels, and how many there are.
SIZE = 48
SCENES = {"train": 1600, "validation": 400}
# Digits of a scene, and their height and width in pixels.
MOST_DIGITS = 4
DIGIT_SIZES = (12, 24)
# A digit's pixel is ink above this share of black.
INK = 0.4
NOISE = 12.0
CLASSES = ["background", *map(str, range(10))]


def digits() -> dict[str, Table]:
    """Return scikit-learn's digits: 1797 images (8, 8, 1), 0 is paper, and their labels.

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed; names the extra that has it.
    """
    pixels, labels = _load_digits()
    classes = Classes(labels, [str(digit) for digit in range(10)])
    columns = {"image": Pixels(pixels, peak=16 * LEVEL), "label": classes}
    return {"train": whole_table(columns, "builtin:digits")}


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    datasets = import_extra("sklearn.datasets", "vision", "builtin:digits needs scikit-learn")
    values, labels = datasets.load_digits(return_X_y=True)
    pixels = (np.asarray(values) * LEVEL).astype(np.uint8).reshape(-1, 8, 8, 1)
    return pixels, np.asarray(labels, np.int64)


def scenes() -> dict[str, Table]:
    """Return scenes of 48 x 48 pixels in colour, and masks of 11 classes: background and digits.

    A mask has 0 for the background and the digit + 1. Scenes to validate on are of other digits
    than those to train on: one in five of the digits is theirs. They are the same for every seed.

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed; names the extra that has it.
    """
    pixels, labels = _load_digits()
    held = np.arange(len(pixels)) % 5 == 0
    return {
        "train": _compose(pixels[~held], labels[~held], SCENES["train"], 1),
        "validation": _compose(pixels[held], labels[held], SCENES["validation"], 2),
    }


def _compose(pixels: np.ndarray, labels: np.ndarray, count: int, seed: int) -> Table:
    images = np.zeros((count, SIZE, SIZE, 3), np.uint8)
    masks = np.zeros((count, SIZE, SIZE), np.uint8)
    for number in range(count):
        random = np.random.default_rng([seed, number])
        images[number], masks[number] = _scene(pixels, labels, random)
    unlabelled = Classes(np.full(count, NO_CLASS, np.int64), CLASSES)
    columns = {"image": Pixels(images), "label": unlabelled, "mask": Pixels(masks)}
    return whole_table(columns, "builtin:scenes")


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
