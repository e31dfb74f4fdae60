"""Splits of images: stores that open them by number, and the labels and masks that go with them.

How a task uses them: `magneto.vision.data`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from errno import ENOENT
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import numpy as np

from magneto.data.cache import content_digest
from magneto.data.counts import Counts
from magneto.data.files import read_bytes
from magneto.data.problems import BadRecord, DataProblems, guarded
from magneto.vision.decoding import (
    BrokenImage,
    EncodedPicture,
    Picture,
    PixelPicture,
    decode_mask,
)

# Images of which the digest of a split takes the bytes, spread over it; of all others it takes
# name, size and label.
SAMPLED = 256
UNLABELLED = -1
# What can be wrong with an image.
BROKEN, MISSING_IMAGE = "broken image", "missing image"
BY_PILLOW = "JPEG decoded by Pillow, since simplejpeg refuses it"


class ImageStore(Protocol):
    """Images by number, wherever they lie. It is read in worker processes, which are forked.

    Attributes:
        peak: Value of the brightest pixel there can be.
        channels: Of every image: 1 or 3.
    """

    peak: int
    channels: int

    def __len__(self) -> int: ...

    def key(self, number: int) -> str:
        """Return what an image is called within the set, wherever that lies."""
        ...

    def name(self, number: int) -> str:
        """Return where an image lies, for messages."""
        ...

    def sizes(self) -> np.ndarray:
        """Return the bytes of each image, int64."""
        ...

    def read(self, number: int) -> bytes:
        """Return the bytes of an image.

        Raises:
            OSError: If they can't be read.
        """
        ...

    def open(self, number: int) -> Picture:
        """Open an image.

        Raises:
            BrokenImage: If it is none.
            OSError: If it can't be read.
        """
        ...

    def mask(self, number: int) -> np.ndarray:
        """Return the image as a mask: numbers of classes, uint8 (height, width)."""
        ...


class PixelStore:
    """Decoded images in memory.

    Args:
        pixels: uint8 (count, height, width, channels); of masks (count, height, width).
        peak: Value of the brightest pixel there can be.
    """

    def __init__(self, pixels: np.ndarray, peak: int = 255) -> None:
        self.all, self.peak = pixels, peak
        self.channels = pixels.shape[-1]

    def __len__(self) -> int:
        return len(self.all)

    def key(self, number: int) -> str:
        """Return the number."""
        return str(number)

    def name(self, number: int) -> str:
        """Return the number in words."""
        return f"image {number}"

    def sizes(self) -> np.ndarray:
        """Return the bytes of each image."""
        return np.full(len(self.all), self.all[0].nbytes, np.int64)

    def read(self, number: int) -> bytes:
        """Return the pixels as bytes."""
        return self.all[number].tobytes()

    def open(self, number: int) -> Picture:
        """Return the pixels as a picture."""
        return PixelPicture(self.all[number])

    def mask(self, number: int) -> np.ndarray:
        """Return a mask."""
        return self.all[number]


class EncodedStore:
    """What stores of encoded images share: bytes are read, then decoded."""

    peak, channels = 255, 3

    def read(self, number: int) -> bytes:
        """Return the bytes of an image."""
        raise NotImplementedError

    def open(self, number: int) -> Picture:
        """Open an image."""
        return EncodedPicture(self.read(number))

    def mask(self, number: int) -> np.ndarray:
        """Decode a mask."""
        return decode_mask(self.read(number))


class FileStore(EncodedStore):
    """Image files.

    Args:
        root: Folder that names are relative to.
        names: Paths of the files, with "/" between their parts; "" where there is none.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root, self.names = root, names

    def __len__(self) -> int:
        return len(self.names)

    def key(self, number: int) -> str:
        """Return the path within the folder."""
        return self.names[number]

    def name(self, number: int) -> str:
        """Return the path."""
        return str(self.root / self.names[number])

    def sizes(self) -> np.ndarray:
        """Return the sizes of the files; -1 of those that are not there."""
        return np.array([_size(self.root / name) for name in self.names], np.int64)

    def read(self, number: int) -> bytes:
        """Return the content of a file."""
        if not self.names[number]:
            raise FileNotFoundError(ENOENT, "there is none")
        return read_bytes(self.root / self.names[number])


def _size(path: Path) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else -1


# Of sets that have no masks.
NO_MASKS = PixelStore(np.zeros((0, 0, 0), np.uint8))


@dataclass(frozen=True)
class ImageSplit:
    """Images of a split, by index: 0 to `len(split) - 1`.

    Attributes:
        images: Where they lie.
        numbers: Of the images in `images`, by index, int64.
        labels: Of all images in `images`, int64; `UNLABELLED` where there is none.
        masks: Of all images in `images`, if the set has masks.
        problems: Told of images that are not read as they should be.
    """

    images: ImageStore
    numbers: np.ndarray
    labels: np.ndarray
    masks: ImageStore = NO_MASKS
    problems: DataProblems = field(default_factory=DataProblems)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def has_masks(self) -> bool:
        """Whether there is a mask for each image."""
        return len(self.masks) > 0

    def label(self, index: int) -> int:
        """Return the number of an image's class, or `UNLABELLED`."""
        return int(self.labels[self.numbers[index]])

    def labels_of(self, indices: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the labels of images, by default of all, int64; see `label`."""
        return self.labels[self.numbers[indices]]

    def name(self, index: int) -> str:
        """Return an image's path or key, for messages."""
        return self.images.name(int(self.numbers[index]))

    def open(self, index: int) -> Picture:
        """Open an image, whose pixels can then be decoded, at a smaller scale too.

        Raises:
            BrokenImage: If it can't be read, or is no image.
        """
        with guarded(BrokenImage):
            found = self.images.open(int(self.numbers[index]))
        found.refused = partial(self.problems.met, BY_PILLOW, self.name(index))
        return found

    def broken(self, index: int, error: BrokenImage) -> None:
        """Note that an image is broken."""
        self.problems.met(BROKEN, self.name(index), str(error))

    def pixels(self, index: int) -> np.ndarray:
        """Return an image, uint8 (height, width, channels): RGB, upright.

        Raises:
            BrokenImage: If it can't be read or decoded.
        """
        return self.open(index).pixels()

    def mask(self, index: int) -> np.ndarray:
        """Return an image's mask: numbers of classes as stored, uint8 (height, width).

        Raises:
            BrokenImage: If it can't be read or decoded.
        """
        with guarded(BrokenImage, "its mask: "):
            return self.masks.mask(int(self.numbers[index]))

    @cached_property
    def digest(self) -> str:
        """A short name for the content: names, sizes and labels of all, bytes of some."""
        sizes = self.images.sizes()[self.numbers]
        names = "\n".join(self.images.key(int(number)) for number in self.numbers)
        some = np.unique(np.linspace(0, max(len(self) - 1, 0), SAMPLED).astype(np.int64))
        return content_digest(names.encode(errors="surrogatepass"), sizes, self.labels_of(),
                              *(self._bytes(index) for index in some[: len(self)]))  # fmt: skip

    def _bytes(self, index: int) -> bytes:
        number = int(self.numbers[index])
        try:
            with guarded():
                mask = self.masks.read(number) if self.has_masks else b""
                return self.images.read(number) + mask
        except BadRecord:
            return b""


@dataclass(frozen=True)
class ImageSplits:
    """What a source has.

    Attributes:
        train: To train on.
        validation: To validate on.
        classes: Names of the classes in the order of their numbers; empty without labels.
        counts: What was met while the source was listed.
    """

    train: ImageSplit
    validation: ImageSplit
    classes: list[str]
    counts: Counts = field(default_factory=Counts)

    def describe(self) -> str:
        """Say how much there is, and what was odd."""
        parts = {"training images": len(self.train), "validation images": len(self.validation),
                 "classes": len(self.classes)}  # fmt: skip
        return self.counts.beside(parts)
