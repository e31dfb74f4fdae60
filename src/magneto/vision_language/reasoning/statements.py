"""Statements about images, as a task reads them by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from magneto.data.cache import content_digest
from magneto.data.counts import Counts
from magneto.data.media import MediaColumn
from magneto.data.problems import DataProblems
from magneto.data.sources import held_out
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.images import BROKEN, ImageSplit, images_of

MISSING = -1
"""In the place of an image's number: there is no such file."""
# Names of the two answers, in the order of their numbers.
ANSWERS = ("False", "True")


@dataclass(frozen=True)
class Statement:
    """A sentence about images.

    Attributes:
        identifier: As the set calls it, "dev-850-0-0".
        sentence: What is said.
        label: 1 if it is true, 0 if not.
        images: Numbers of the images in their store, left before right; `MISSING` for what is not
            there.
        group: All statements about one set of images have one: they stay together when some are
            held out, as NLVR2's authors ask.
        said: All uses of one sentence have one: it is consistent where all are right.
    """

    identifier: str
    sentence: str
    label: int
    images: tuple[int, ...]
    group: str
    said: str


@dataclass(frozen=True)
class StatementSplit:
    """Statements and the store of their images.

    Attributes:
        store: Of the images.
        statements: In the order of their file.
        missing: Names of image files that statements are about and that are not there.
        problems: Told of images that are not read as they should be.
    """

    store: MediaColumn
    statements: Sequence[Statement]
    missing: Sequence[str] = ()
    problems: DataProblems = field(default_factory=DataProblems)

    def __len__(self) -> int:
        return len(self.statements)

    @cached_property
    def labels(self) -> np.ndarray:
        """Of all statements, int64."""
        return np.array([one.label for one in self.statements], np.int64)

    @cached_property
    def images(self) -> ImageSplit:
        """All images of the store, by their numbers."""
        return images_of(self.store, problems=self.problems)

    def broken(self, index: int, error: BrokenImage) -> None:
        """Note that one of a statement's images is broken; those missing are known."""
        numbers = self.statements[index].images
        if MISSING not in numbers:
            names = ", ".join(self.store.name(number) for number in numbers)
            self.problems.met(BROKEN, names, str(error))

    def open(self, index: int) -> list[Picture]:
        """Open the images of a statement.

        Raises:
            BrokenImage: If one is missing, can't be read, or is no image.
        """
        numbers = self.statements[index].images
        if MISSING in numbers:
            raise BrokenImage("is missing")
        return [self.images.open(number) for number in numbers]

    @cached_property
    def complete(self) -> StatementSplit:
        """The statements whose images are all there."""
        kept = [one for one in self.statements if MISSING not in one.images]
        return replace(self, statements=kept)

    @property
    def digest(self) -> str:
        """A short name for the content: all statements, sizes of their images, bytes of some."""
        words = "\n".join(f"{s.identifier} {s.label} {s.sentence}" for s in self.statements)
        used = np.unique([number for s in self.statements for number in s.images])
        images = images_of(self.store, used[used >= 0])
        return content_digest(words.encode(errors="surrogatepass"), images.digest.encode())


@dataclass(frozen=True)
class StatementSplits:
    """What a source has.

    Attributes:
        train: To train on; images of all are there.
        validation: To validate on; where an image is missing, the answer counts as wrong.
        counts: What was met while reading.
    """

    train: StatementSplit
    validation: StatementSplit
    counts: Counts = field(default_factory=Counts)


def hold_out(split: StatementSplit, fraction: float) -> tuple[StatementSplit, StatementSplit]:
    """Cut a split in one to train and one to validate on, by a hash of each set of images."""
    parts: tuple[list[Statement], list[Statement]] = ([], [])
    for one in split.statements:
        parts[held_out(f"validation:{one.group}", fraction)].append(one)
    train, validation = (StatementSplit(split.store, part, split.missing) for part in parts)
    return train, validation
