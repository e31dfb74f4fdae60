"""Images with texts from any source, as splits that tasks read by index.

How a task uses it::

    splits = load_pairs(config, progress)        # lists the source; decodes nothing
    split = splits.train
    len(split), split.text(3), split.name(3)     # pairs; the text; for messages
    split.open(3)                                # a picture, as of magneto.vision.images
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from magneto.data.cache import content_digest
from magneto.data.counts import Counts
from magneto.data.media import MediaColumn
from magneto.data.problems import DataProblems
from magneto.data.splits import held_out
from magneto.progress import SILENT, Progress
from magneto.vision.decoding import Picture
from magneto.vision.images import ImageSplit, images_of
from magneto.vision_language.config import PairDataConfig
from magneto.vision_language.pair_sources import PairListing, list_pairs

# Of another source the first of these splits that it has is validated on.
VALIDATED = ("validation", "test", "train")


@dataclass(frozen=True)
class PairSplit:
    """Pairs of a split, by index: 0 to `len(split) - 1`.

    Attributes:
        store: Where the images lie.
        numbers: Of the image of each pair in `store`, int64.
        texts: Of each pair.
        problems: Told of images that are not read as they should be.
    """

    store: MediaColumn
    numbers: np.ndarray
    texts: Sequence[str]
    problems: DataProblems = field(default_factory=DataProblems)

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def images(self) -> ImageSplit:
        """The image of each pair, by the pair's index."""
        return images_of(self.store, self.numbers, self.problems)

    @cached_property
    def single_images(self) -> ImageSplit:
        """Each image once, however many texts it has."""
        return images_of(self.store, np.unique(self.numbers), self.problems)

    def text(self, index: int) -> str:
        """Return the text of a pair."""
        return self.texts[index]

    def name(self, index: int) -> str:
        """Return the image's path or key, for messages."""
        return self.images.name(index)

    def open(self, index: int) -> Picture:
        """Open the image of a pair.

        Raises:
            BrokenImage: If it can't be read, or is no image.
        """
        return self.images.open(index)

    @cached_property
    def digest(self) -> str:
        """A short name for the content: all texts, names and sizes of images, bytes of some."""
        texts = "\0".join(self.texts).encode(errors="surrogatepass")
        return content_digest(texts, self.images.digest.encode())


@dataclass(frozen=True)
class PairSplits:
    """What a source has.

    Attributes:
        train: To train on.
        validation: To validate on.
        counts: What was met while the source was listed.
    """

    train: PairSplit
    validation: PairSplit
    counts: Counts = field(default_factory=Counts)

    def describe(self) -> str:
        """Say how much there is, and what was odd."""
        parts = {"training pairs": len(self.train), "validation pairs": len(self.validation)}
        return self.counts.beside(parts)


def load_pairs(
    config: PairDataConfig, progress: Progress = SILENT, problems: DataProblems | None = None
) -> PairSplits:
    """List the pairs of a source.

    Args:
        config: Which, and what is held out.
        progress: Told of long work.
        problems: Told of images that are not read as they should be; None tells nobody.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If there are no pairs to train on, or none to validate on.
    """
    counts = Counts()
    there = list_pairs(config.source, config, counts, progress)
    train = there.get("train") or next(iter(there.values()))
    if config.validation_source is not None:
        other = list_pairs(config.validation_source, config, counts, progress)
        parts = whole(train), whole(other[next(split for split in VALIDATED if split in other)])
    elif "validation" in there and "train" in there:
        parts = whole(train), whole(there["validation"])
    else:
        parts = hold_out(train, config.validation_fraction)
    if not all(len(part) for part in parts):
        raise ValueError(f"{config.source} has {len(parts[0])} pairs to train on and "
                         f"{len(parts[1])} to validate on{counts.describe()}: set "
                         "data.validation_fraction or data.validation_source")  # fmt: skip
    told = problems or DataProblems()
    train_split, validation = (replace(part, problems=told) for part in parts)
    return PairSplits(train_split, validation, counts)


def whole(listing: PairListing) -> PairSplit:
    """Return all pairs of a listing."""
    return PairSplit(listing.images, listing.numbers, listing.texts)


def hold_out(listing: PairListing, fraction: float) -> tuple[PairSplit, PairSplit]:
    """Cut a listing in pairs to train and to validate on; all texts of an image stay together."""
    known: dict[int, bool] = {}
    for number in listing.numbers.tolist():
        if number not in known:
            known[number] = held_out(listing.images.key(number), fraction)
    held = np.array([known[number] for number in listing.numbers.tolist()], bool)
    return chosen(listing, np.flatnonzero(~held)), chosen(listing, np.flatnonzero(held))


def chosen(listing: PairListing, rows: np.ndarray) -> PairSplit:
    """Return some pairs of a listing."""
    texts = [listing.texts[int(row)] for row in rows]
    return PairSplit(listing.images, listing.numbers[rows], texts)
