"""What a source of images lists: its splits as they lie, before they are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from magneto.data.splits import SPLIT_NAMES
from magneto.vision.images import NO_MASKS, UNLABELLED, ImageStore

T = TypeVar("T")

# Endings of image files, in lower case. What is in them decides how they are read.
IMAGE_ENDINGS = (
    ".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
    ".pbm", ".jp2", ".avif",
)  # fmt: skip


# Labels that are whole numbers below this are numbers of classes; others are words.
MOST_CLASSES = 1_000_000
# Names of folders and files that stand for a split, best first.
SPLIT_WORDS = {**SPLIT_NAMES, "train": ("train", "training")}


@dataclass(frozen=True)
class Listing:
    """The images of one split of a source, as they lie.

    Attributes:
        images: All of them.
        labels: Of each, int64; `UNLABELLED` where there is none.
        classes: Names of the classes in the order of their numbers.
        masks: Of each, if there are masks.
    """

    images: ImageStore
    labels: np.ndarray
    classes: list[str]
    masks: ImageStore = NO_MASKS


def unlabelled(images: ImageStore, masks: ImageStore = NO_MASKS) -> Listing:
    """Return a listing of images without labels."""
    return Listing(images, np.full(len(images), UNLABELLED, np.int64), [], masks)


def number_labels(words: Sequence[str | None]) -> tuple[np.ndarray, list[str]]:
    """Number labels that are words, in the order of the alphabet.

    Where all are whole numbers, each is its own number, and the classes are called "0", "1", ...

    Args:
        words: Of each image; None where there is no label.

    Returns:
        Labels, int64, and the names of the classes.
    """
    known = {word for word in words if word is not None}
    if known and all(is_number(word) for word in known):
        classes = [str(number) for number in range(max(map(int, known)) + 1)]
        numbers = {word: int(word) for word in known}
    else:
        classes = sorted(known)
        numbers = {word: number for number, word in enumerate(classes)}
    labels = [UNLABELLED if word is None else numbers[word] for word in words]
    return np.array(labels, np.int64), classes


def is_number(word: str) -> bool:
    """Return whether a label is a whole number below `MOST_CLASSES`."""
    short = len(word) < len(str(MOST_CLASSES))  # thousands of digits are no number in Python
    return short and word.isascii() and word.isdigit()


def standard_splits(there: Mapping[str, T]) -> dict[str, T]:
    """Return what stands for "train", "validation" and "test", as far as they are there.

    Args:
        there: Anything by its name, in lower case.
    """
    found = {split: [there[word] for word in words if word in there]
             for split, words in SPLIT_WORDS.items()}  # fmt: skip
    return {split: values[0] for split, values in found.items() if values}
