"""Images with captions, several each: what retrieval and captioning read, in Karpathy's layout.

COCO, Flickr30k and Flickr8k are shared as dataset_NAME.json, one JSON object: "images", a list with
"filename", maybe "filepath", "split" (train, restval, val, test) and "sentences", each with "raw".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from magneto.config import shown
from magneto.data.cache import content_digest
from magneto.data.counts import EMPTY, Counts
from magneto.data.files import existing_path, has_ending, read_list
from magneto.data.media import MediaColumn
from magneto.data.problems import BadRecord, DataProblems, read_each
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.images import BROKEN, ImageSplit, images_of
from magneto.vision_language.image_files import SEVERAL, NamedImages

IMAGES = "captioned images"
DUPLICATES = "images met before left out"
OTHER_SPLITS = "images of a split that is none of train, restval, val and test left out"
WITHOUT_CAPTION = "images without a caption left out"
MISSING_FILES = "images with captions whose file is missing"
# Split of a file's words; "restval" is the part of COCO's validation images that all train on.
SPLITS = {"train": ("train", "restval"), "val": ("val",), "test": ("test",)}
MISSING = -1


@dataclass(frozen=True)
class CaptionedImage:
    """An image and what is said of it.

    Attributes:
        name: Of its file, or its key.
        image: Its number in the store; `MISSING` if there is no such file.
        captions: One or more.
    """

    name: str
    image: int
    captions: tuple[str, ...]


@dataclass(frozen=True)
class CaptionSplit:
    """Captioned images and the store that has the images.

    Attributes:
        store: Of the images.
        rows: In the order of their source.
        problems: Told of images that are not read as they should be.
    """

    store: MediaColumn
    rows: Sequence[CaptionedImage]
    problems: DataProblems = field(default_factory=DataProblems)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def images(self) -> ImageSplit:
        """All images of the store, by their numbers."""
        return images_of(self.store, problems=self.problems)

    def broken(self, index: int, error: BrokenImage) -> None:
        """Note that an image is broken or missing."""
        self.problems.met(BROKEN, self.rows[index].name, str(error))

    def open(self, index: int) -> Picture:
        """Open an image.

        Raises:
            BrokenImage: If it is missing, can't be read, or is no image.
        """
        number = self.rows[index].image
        if number == MISSING:
            raise BrokenImage("is missing")
        return self.images.open(number)

    @cached_property
    def complete(self) -> CaptionSplit:
        """Those whose file is there."""
        return replace(self, rows=[row for row in self.rows if row.image != MISSING])

    @property
    def digest(self) -> str:
        """A short name for the content: all captions, sizes of the images, bytes of some."""
        words = "\n".join(f"{row.name} {row.captions}" for row in self.rows)
        used = np.unique([row.image for row in self.rows])
        images = images_of(self.store, used[used >= 0])
        return content_digest(words.encode(errors="surrogatepass"), images.digest.encode())


@dataclass(frozen=True)
class CaptionSplits:
    """What a source has.

    Attributes:
        train: To train on; all files are there.
        validation: To validate on; a missing file is seen as nothing.
        counts: What was met while reading.
    """

    train: CaptionSplit
    validation: CaptionSplit
    counts: Counts = field(default_factory=Counts)


def find_karpathy(path: Path) -> Path | None:
    """Return a folder's dataset_*.json, or the file itself if it is named so; else None.

    Raises:
        ValueError: If a folder has several.
    """
    if path.is_file():
        return path if path.name.startswith("dataset") and ".json" in path.suffixes else None
    every = sorted(path.glob("dataset*.json*"))
    found = [file for file in every if has_ending(file, (".json",))]
    if len(found) > 1:
        raise ValueError(f"{path} has {found[0].name} and {found[1].name}: name one of them")
    return found[0] if found else None


def read_karpathy(path: Path, images: NamedImages, counts: Counts) -> dict[str, CaptionSplit]:
    """Read a file in Karpathy's layout: "train", "val" and "test", as far as they are there.

    What is malformed, has no caption or another split, or is there twice is counted and left out;
    captioned images whose file is missing stay, and are counted.

    Args:
        path: The file, maybe packed.
        images: Those that there are.
        counts: Is added to.

    Raises:
        ValueError: If it is damaged or not in this layout, or none of its images is there.
    """
    words = {word: split for split, names in SPLITS.items() for word in names}
    found: dict[str, list[CaptionedImage]] = {}
    known = set[str]()
    records = read_list(existing_path(str(path)), "images", counts)
    read = partial(_row, images=images, counts=counts)
    for row, named in read_each(records, read, counts, f"{path}, image"):
        if row.name in known:
            counts.met(DUPLICATES, str(path), row.name)
            continue
        known.add(row.name)
        split = words.get(named)
        if split is None:
            counts.met(OTHER_SPLITS, str(path), f"{row.name}: {shown(named)}")
            continue
        found.setdefault(split, []).append(row)
    rows = [row for split in found.values() for row in split]
    missing = [row.name for row in rows if row.image == MISSING]
    counts[IMAGES] += len(rows)
    counts[MISSING_FILES] += len(missing)
    if several := images.several(row.image for row in rows):
        counts[SEVERAL] += several
    if len(missing) == len(rows):
        example = f", for example {missing[0]}" if missing else ""
        raise ValueError(f"{path}: none of its images is in {images.where}{example}: name their "
                         "folder, data.image_folder")  # fmt: skip
    return {split: CaptionSplit(images.store, found[split]) for split in SPLITS if split in found}


def _row(record: Any, images: NamedImages, counts: Counts) -> tuple[CaptionedImage, str] | None:
    """Return a record as a captioned image and what its split is called; None without a caption.

    Raises:
        BadRecord: If it has no filename.
    """
    if not isinstance(record, dict) or not isinstance(record.get("filename"), str):
        raise BadRecord("no filename")
    sentences = record.get("sentences")
    texts = [one.get("raw") for one in sentences if isinstance(one, dict)] if isinstance(
        sentences, list
    ) else []  # fmt: skip
    captions = tuple(text.strip() for text in texts if isinstance(text, str) and text.strip())
    counts[EMPTY] += len(texts) - len(captions)
    if not captions:
        counts[WITHOUT_CAPTION] += 1
        return None
    name = record["filename"].rpartition("/")[2]
    row = CaptionedImage(name, images.numbers.get(name, MISSING), captions)
    return row, str(record.get("split", "train"))
