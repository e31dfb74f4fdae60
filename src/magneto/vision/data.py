"""Images from any source, as splits that tasks read by index.

How a task uses it::

    splits = load_images(config, seed, progress)     # lists the source; decodes nothing
    split = splits.train
    len(split), split.label(3), split.name(3)        # how many; class or -1; for messages
    split.pixels(3)                                  # uint8 (height, width, 3), RGB, upright
    split.mask(3)                                    # uint8 (height, width), if split.has_masks
    splits.classes                                   # names, in the order of their numbers

A batch is made by `magneto.vision.batches`: `training_stream` (labelled images) and
`example_stream` (anything that an index and a generator make) shuffle, augment and replace what is
broken, all as functions of (seed, epoch, index); `evaluation_images` gives fixed batches and says
which images are broken. What happens to an image is a transform of `magneto.vision.transforms`, or
of `magneto.vision.paired_transforms` with its mask: it takes a `Picture` (its size is known, its
pixels are decoded on demand) and a numpy Generator. `split.digest` names the content, for
`Task.artifacts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from magneto.data.counts import Counts
from magneto.data.problems import DataProblems
from magneto.data.sources import parse_source
from magneto.data.splits import held_out
from magneto.progress import SILENT, Progress
from magneto.vision.config import ImageDataConfig
from magneto.vision.images import UNLABELLED, ImageSplit, ImageSplits
from magneto.vision.listing import Listing, is_number
from magneto.vision.sources import list_source

# In the order in which a source to validate on is looked through, as of speech.
VALIDATED = ("validation", "test", "train")
# Where there are splits for testing: what they are used for.
FROM_TEST = "validation images from its test split"
TEST_UNUSED = "images of its test split not used"


def load_images(
    config: ImageDataConfig,
    seed: int,
    progress: Progress = SILENT,
    problems: DataProblems | None = None,
) -> ImageSplits:
    """List the images of a source.

    Args:
        config: Which, and what is held out.
        seed: Of what is held out of a built-in set.
        progress: Told of long work.
        problems: Told of images that are not read as they should be; None tells nobody.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If there are no images, or classes that the training images have not.
    """
    counts = Counts()
    there = list_source(config.source, config, counts, progress)
    train = there.get("train") or next(iter(there.values()))
    classes = list(config.classes or train.classes)
    if config.validation_source is not None:
        other = list_source(config.validation_source, config, counts, progress)
        used = next(split for split in VALIDATED if split in other)
        parts = whole(train, classes), whole(other[used], classes)
        counts[FROM_TEST] += len(parts[1]) if used == "test" else 0
    elif "validation" in there and "train" in there:
        parts = whole(train, classes), whole(there["validation"], classes)
    else:
        parts = hold_out(whole(train, classes), config, seed)
        counts[TEST_UNUSED] += len(there["test"].images) if {"train", "test"} <= {*there} else 0
    parts = tuple(replace(part, problems=problems or DataProblems()) for part in parts)
    if not all(len(part) for part in parts):
        raise ValueError(f"{config.source} has {len(parts[0])} images to train on and "
                         f"{len(parts[1])} to validate on: set data.validation_fraction or "
                         "data.validation_source")  # fmt: skip
    train_split, validation = parts
    return ImageSplits(train_split, validation, classes, counts)


def whole(listing: Listing, classes: Sequence[str]) -> ImageSplit:
    """Return all images of a listing, their labels numbered as the classes are.

    Raises:
        ValueError: If an image is of another class.
    """
    used = np.unique(listing.labels[listing.labels != UNLABELLED])
    names = [listing.classes[i] for i in used]
    numbers = class_numbers(names, classes)
    unknown = [name for name in names if name not in numbers]
    if unknown:
        raise ValueError(f"{listing.images.name(0)} and others: class {unknown[0]!r} is none of "
                         f"the {len(classes)} that are known")  # fmt: skip
    table = np.array([*(numbers.get(name, 0) for name in listing.classes), UNLABELLED], np.int64)
    every = np.arange(len(listing.images))
    return ImageSplit(listing.images, every, table[listing.labels], listing.masks)


def class_numbers(names: Sequence[str], classes: Sequence[str]) -> dict[str, int]:
    """Return the numbers of classes by name.

    Where a set has none of the known names, and all of its own are numbers of the known classes,
    they are meant: the folders of ImageNet-V2 are called 0 to 999.

    Args:
        names: That a set has.
        classes: That are known, in the order of their numbers.
    """
    known = {name: number for number, name in enumerate(classes)}
    numbers = {name: int(name) for name in names if is_number(name)}
    meant = len(numbers) == len(names) and all(n < len(classes) for n in numbers.values())
    return numbers if meant and not known.keys() & numbers.keys() else known


def hold_out(
    split: ImageSplit, config: ImageDataConfig, seed: int
) -> tuple[ImageSplit, ImageSplit]:
    """Cut a split in one to train and one to validate on."""
    share, count = config.validation_fraction, len(split)
    if parse_source(config.source).kind == "builtin":
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
        cut = round(count * share)
        parts = order[cut:], order[:cut]
    else:
        held = np.array([held_out(split.images.key(number), share) for number in range(count)])
        parts = np.flatnonzero(~held), np.flatnonzero(held)
    train, validation = (
        ImageSplit(split.images, part, split.labels, split.masks) for part in parts
    )
    return train, validation
