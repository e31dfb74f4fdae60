"""Images with masks: what their numbers mean, and how both are read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from magneto.data.batch import LazyBatches, mixed_plans
from magneto.data.problems import guarded
from magneto.data.stream import BatchStream
from magneto.vision.batches import example_stream
from magneto.vision.decoding import BrokenImage, pillow
from magneto.vision.geometry import from_image, to_image
from magneto.vision.images import ImageSplit
from magneto.vision.paired_transforms import IGNORED, PairedAugmentation, fitted_size
from magneto.vision.segmentation.config import SegmentationDataConfig, SegmenterConfig
from magneto.vision.transforms import Reading


@dataclass(frozen=True)
class MaskReading:
    """What the numbers in masks mean.

    Attributes:
        classes: How many there are.
        reduce_zero_label: Whether 0 is none, and all others are one less.
        ignored: Further numbers, as they are stored, that are none.
    """

    classes: int
    reduce_zero_label: bool = False
    ignored: tuple[int, ...] = ()

    @cached_property
    def table(self) -> np.ndarray:
        """The class of each stored number, uint8 (256)."""
        found = np.arange(256)
        if self.reduce_zero_label:
            found = np.where(found == IGNORED, IGNORED, (found - 1) % 256)
        found[list(self.ignored)] = IGNORED
        return found.astype(np.uint8)

    def __call__(self, stored: np.ndarray) -> np.ndarray:
        """Return classes, `IGNORED` for none, of a mask as it is stored; both uint8.

        Raises:
            BrokenImage: If there is a class that is not known.
        """
        found = self.table[stored]
        unknown = stored[(found >= self.classes) & (found != IGNORED)]
        if unknown.size:
            raise BrokenImage(
                f"its mask has {unknown[0]}, there are {self.classes} classes: data.ignored or "
                "data.reduce_zero_label says which numbers are none"
            )
        return found


def read_pair(split: ImageSplit, index: int, masks: MaskReading) -> tuple[np.ndarray, np.ndarray]:
    """Return an image's pixels, (height, width, channels), and its classes, (height, width).

    Raises:
        BrokenImage: If one of them can't be read, or they do not fit together.
    """
    pixels, mask = split.pixels(index), masks(split.mask(index))
    if pixels.shape[:2] != mask.shape:
        size, other = (" x ".join(map(str, found.shape[:2])) for found in (pixels, mask))
        raise BrokenImage(f"is {size}, its mask {other}")
    return pixels, mask


def fitted(pixels: np.ndarray, fit: tuple[int, int] | None) -> np.ndarray:
    """Resize pixels (bilinear) to the largest size of their ratio within (longer, shorter) side."""
    height, width = pixels.shape[:2]
    rows, columns = fitted_size(height, width, fit)
    if (rows, columns) == (height, width):
        return pixels
    bilinear = pillow().Resampling.BILINEAR
    return from_image(to_image(pixels).resize((columns, rows), bilinear))


def training_pairs(
    split: ImageSplit, masks: MaskReading, transform: PairedAugmentation, batch_size: int, seed: int
) -> BatchStream:
    """Return shuffled batches: "images", "masks" (uint8) and "broken", each (batch, ...).

    Args:
        split: Of images with masks.
        masks: What their numbers mean.
        transform: What is done to an image and its mask.
        batch_size: Images of a global batch.
        seed: Of order and randomness.
    """

    def example(index: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        image, mask = transform(split.open(index), masks(split.mask(index)), random)
        return {"images": image, "masks": mask}

    return example_stream(len(split), example, batch_size, seed, broken=split.broken)


def black_pairs(config: SegmenterConfig, examples: int) -> dict[str, Tensor]:
    """Return a training batch of black images of a model's size; pixels are of the first class."""
    side = config.image_size
    return {
        "images": torch.zeros(examples, config.channels, side, side),
        "masks": torch.zeros(examples, side, side, dtype=torch.uint8),
        "broken": torch.zeros(examples, dtype=torch.bool),
    }


def evaluation_pairs(
    split: ImageSplit,
    masks: MaskReading,
    data: SegmentationDataConfig,
    reading: Reading,
    batch_size: int,
) -> LazyBatches:
    """Return the batches of a split in mixed order: lists "images" and "masks", and "broken".

    An image is resized as `data.fit` says; its mask keeps its size: there it is compared. In the
    place of what is broken stands an image whose pixels are all ignored.
    """

    def pair(row: int) -> tuple[Tensor, Tensor, bool]:
        try:
            with guarded(BrokenImage):
                pixels, mask = read_pair(split, row, masks)
                image = reading.normalise(fitted(pixels, data.fit))
        except BrokenImage as error:
            split.broken(row, error)
            nothing = np.full(reading.blank.shape[1:], IGNORED, np.uint8)
            return torch.from_numpy(reading.blank), torch.from_numpy(nothing), True
        return torch.from_numpy(image), torch.from_numpy(mask), False

    def make(rows: np.ndarray) -> dict[str, list[Tensor] | Tensor]:
        images, known, broken = zip(*map(pair, rows.tolist()), strict=True)
        return {"images": list(images), "masks": list(known), "broken": torch.tensor(broken)}

    return LazyBatches(mixed_plans(len(split), batch_size), make)
