"""Images with what is said of them, as rows of tables: captions, questions, statements.

How a task uses it::

    splits = load_rows(config, tables_of, problems, counts)    # lists the source; decodes nothing
    rows = splits.train
    len(rows), rows.values("question")     # of all rows, in their order
    rows.open(3)                           # the pictures of a row: one, or a statement's two

A source of any kind is read by `magneto.data.formats`. What has files of its own (VQA v2, NLVR2,
Karpathy's captions) has a function from these to a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.files import existing_path, has_ending, read_list
from magneto.data.formats import media_column, media_names, read_source
from magneto.data.media import IMAGE_ENDINGS, Files, MediaColumn
from magneto.data.problems import EMPTY, Counts, DataProblems, read_each
from magneto.data.sources import parse_source
from magneto.data.table import Table, divide, table_of_records
from magneto.progress import SILENT, Progress
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.images import (
    BROKEN,
    MISSING_IMAGE,
    ImageSplit,
    find_images,
    images_of,
    with_images,
)
from magneto.vision_language.config import CaptionDataConfig, ImageTextDataConfig
from magneto.vision_language.scenes import scene_pairs

MISSING = "training rows whose image is missing left out"
LOST = "validation rows whose image is missing (they count as wrong)"
TWICE = "pairs that come twice left out"
# What is said where a name alone does not tell which file is meant.
SEVERAL = "images whose name another file has too left out (the first by folder is read)"
# The splits of files in Karpathy's layout; "restval" is the part of COCO's validation images that
# all train on.
KARPATHY = {"train": "train", "restval": "train", "val": "validation", "test": "test"}
OTHER_SPLITS = "images of a split that is none of train, restval, val and test left out"

Tables = Callable[[str], Mapping[str, Table]]
"""From a source to its tables by split, with the columns that a task reads."""


@dataclass(frozen=True)
class ImageRows:
    """Rows of a split, by index: 0 to `len(rows) - 1`.

    Attributes:
        table: With columns of images, and of what is said of them.
        names: Of the columns of images, in the order in which a model sees them.
        problems: Told of images that are not read as they should be.
    """

    table: Table
    names: tuple[str, ...] = ("image",)
    problems: DataProblems = field(default_factory=DataProblems)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def images(self) -> tuple[ImageSplit, ...]:
        """The images of each column, by the row's index."""
        columns = (self.table.columns[name] for name in self.names)
        return tuple(images_of(column, self.table.rows, self.problems) for column in columns)

    def values(self, name: str) -> Any:
        """Return what a column has in each row."""
        return self.table.values(name)

    def open(self, index: int) -> list[Picture]:
        """Open the images of a row; raise BrokenImage if one can't be read."""
        return [images.open(index) for images in self.images]

    def name(self, index: int) -> str:
        """Return where the images of a row lie, for messages."""
        return ", ".join(images.name(index) for images in self.images)

    def broken(self, index: int, error: BrokenImage) -> None:
        """Note that an image of a row is broken or missing."""
        self.problems.record(BROKEN, self.name(index), str(error))

    def take(self, indices: np.ndarray) -> ImageRows:
        """Return some rows, by index or as a mask."""
        return replace(self, table=self.table.take(indices))

    @property
    def digest(self) -> str:
        """A short name for the content: all words, names and sizes of images, bytes of some."""
        return self.table.digest


@dataclass(frozen=True)
class RowSplits:
    """What a source has.

    The files of all images to train on are there; a validation row whose image is missing counts as
    wrong.
    """

    train: ImageRows
    validation: ImageRows
    counts: Counts = field(default_factory=Counts)


def load_rows(
    config: ImageTextDataConfig,
    tables: Tables,
    problems: DataProblems,
    counts: Counts,
    wanted: str = "validation",
    names: tuple[str, ...] = ("image",),
    key: str = "image",
) -> RowSplits:
    """Return rows to train and to validate on.

    Args:
        config: Which source, and what is held out.
        tables: Reads a source.
        problems: Told of missing images, by name.
        counts: Told how many are missing.
        wanted: The split to validate on. For "validation" another one may stand, or rows that are
            held out; any other has to be there.
        names: Of the columns of images.
        key: Column by whose values rows are held out.

    Raises:
        ValueError: If there are no rows to train or to validate on, none of their images is there,
            or there is no such split.
    """
    there, other = tables(config.source), None
    if config.validation_source is not None:
        same = config.validation_source == config.source
        other = there if same else tables(config.validation_source)
    if wanted == "validation":
        parts = divide(there, other, config.validation_fraction, key, counts)
    else:
        found, source = other or there, config.validation_source or config.source
        if wanted not in found:
            raise ValueError(f"{source} has no {wanted} split, it has {', '.join(found)}: set "
                             "data.validation_split or data.validation_source")  # fmt: skip
        others = [table for split, table in there.items() if other or split != wanted]
        if not others:
            raise ValueError(f"{source} has nothing to train on but its {wanted} split, which is "
                             "to be validated on: name this one, data.validation_source, and "
                             "another one to train on, data.source")  # fmt: skip
        parts = there.get("train", others[0]), found[wanted]
    train, held = (ImageRows(part, names, problems) for part in parts)
    gone = missing_images(train)
    for images, lost in zip(train.images, gone.T, strict=True):
        for index in np.flatnonzero(lost).tolist():
            problems.record(MISSING_IMAGE, images.name(index), "no such file")
    lacking: np.ndarray = np.any(gone, axis=1)
    counts[MISSING] += int(lacking.sum())
    counts[LOST] += int(missing_images(held).any(1).sum())
    return RowSplits(train.take(~lacking), held, counts)


def missing_images(rows: ImageRows) -> np.ndarray:
    """Return whether the file of an image is not there, boolean (rows, columns of images)."""
    columns = [images.images for images in rows.images]
    found = [column.sizes()[rows.table.rows] < 0 if isinstance(column, Files)
             else np.zeros(len(rows), bool) for column in columns]  # fmt: skip
    gone = np.stack(found, 1)
    if len(rows) and gone.any(1).all():
        first = rows.images[int(gone[0].argmax())].name(0)
        raise ValueError(f"{rows.table.where}: none of the {len(rows)} rows has its images, there "
                         f"is no {first}: name their folder, data.image_folder")  # fmt: skip
    return gone


def read_tables(
    source: str, builtin: Callable[[], dict[str, Table]], counts: Counts, progress: Progress
) -> dict[str, Table]:
    """Return the tables of a source by split: what is built in, or what any field reads."""
    if parse_source(source).kind == "builtin":
        return builtin()
    return read_source(source, counts, "image", progress)


def find_columns(
    table: Table,
    images: Mapping[str, str | None],
    words: Mapping[str, str | None],
    folder: str | None,
    counts: Counts,
) -> Table:
    """Return a table whose columns are called as a task calls them; rows without an image go.

    Images and words are the task's names of columns, with those in the recipe. Paths are relative
    to the folder, or to the table's own.

    Raises:
        ValueError: If there is no such column, or no row has an image.
    """
    if folder is not None:
        table = replace(table, root=existing_path(folder))
    wanted, columns = {**images, **words}, dict(table.columns)
    for what, name in wanted.items():
        found = find_images(table, name) if what == "image" else table.find(what, name)
        if found is None:
            raise table.no_column(what, *(other for other in wanted if other != what))
        columns[what] = media_column(table, found) if what in images else table.columns[found]
    table = replace(table, columns=columns)
    for what in images:
        table = with_images(table, what, counts)
    return table


def with_words(
    table: Table, images: Sequence[str], found: Mapping[int, Mapping[str, Any]], counts: Counts
) -> Table:
    """Return the rows of which words were read: columns of images, and what was found by row."""
    if not found:
        raise ValueError(f"{table.where} has no rows that can be used{counts.describe()}")
    columns: dict[str, Any] = {name: table.columns[name] for name in images}
    size = len(columns[images[0]])
    for name in next(iter(found.values())):
        column: list[Any] = [None] * size
        for row, values in found.items():
            column[row] = values[name]
        columns[name] = column
    return replace(table, columns=columns, rows=np.array([*found], np.int64))


def image_files(folder: Path, counts: Counts) -> dict[str, str]:
    """Return the paths of all images below a folder, by the last part of their names.

    Sets of photographs are unpacked in more than one way: NLVR2's training images lie in a hundred
    folders or in one. Of two files of one name the first in the order of the alphabet counts.
    """
    root = folder if folder.is_dir() else folder.parent
    found: dict[str, str] = {}
    for path in media_names(root, "image", Counts()):
        counts[SEVERAL] += found.setdefault(path.rpartition("/")[2], path) != path
    if not found:
        raise ValueError(f"no images below {root}: no file ends in {', '.join(IMAGE_ENDINGS)}; "
                         "archives have to be unpacked")  # fmt: skip
    return found


def named_images(names: Sequence[str], folder: Path, known: Mapping[str, str]) -> MediaColumn:
    """Return images that are called by file name alone; see `image_files`."""
    return Files(folder if folder.is_dir() else folder.parent,
                 [known.get(name, name) for name in names])  # fmt: skip


def load_captions(
    config: CaptionDataConfig, problems: DataProblems, progress: Progress = SILENT
) -> RowSplits:
    """Return images with all of their "captions", a row each.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If there are no images with captions, or not the split that is asked for.
    """
    counts = Counts()

    def tables(source: str) -> dict[str, Table]:
        file = karpathy_file(source)
        if file is not None:
            there = karpathy_tables(file, config.image_folder, counts)
        else:
            there = read_tables(source, scene_pairs, counts, progress)
        return {split: caption_table(table, config, counts) for split, table in there.items()}

    wanted = {"val": "validation", "test": "test"}[config.validation_split]
    return load_rows(config, tables, problems, counts, wanted)


def caption_table(table: Table, config: CaptionDataConfig, counts: Counts) -> Table:
    """Return the images of a table with all of their captions, whichever rows have them.

    What is left out is counted: rows without an image, texts that are empty, pairs that come twice.
    """
    names = {"image": config.image_column}, {"text": config.text_column}
    table = find_columns(table, *names, config.image_folder, counts)
    store, texts = table.columns["image"], table.columns["text"]
    first: dict[str, int] = {}
    captions: dict[int, list[str]] = {}
    for row in table.rows.tolist():
        number = first.setdefault(store.key(row), row) if isinstance(store, Files) else row
        for said in texts_of(texts[row]):
            words, known = " ".join(said.split()), captions.get(number, [])
            if not words:
                counts.record(EMPTY, f"{table.where}, record {row + 1}", "no text")
            elif words in known:
                counts[TWICE] += 1
            else:
                captions[number] = [*known, words]
    found = {row: {"captions": tuple(own)} for row, own in captions.items()}
    return with_words(table, ("image",), found, counts)


def texts_of(value: Any) -> list[str]:
    """Return a text, or a list of texts, as a list; an empty text where it is neither."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return value
    return [value if isinstance(value, str) else ""]


def karpathy_file(source: str) -> Path | None:
    """Return a source's dataset_*.json, or the file itself if it is named so; else None."""
    if parse_source(source).kind != "path":
        return None
    path = existing_path(source)
    if path.is_file():
        return path if path.name.startswith("dataset") and ".json" in path.suffixes else None
    found = [file for file in sorted(path.glob("dataset*.json*")) if has_ending(file, (".json",))]
    if len(found) > 1:
        raise ValueError(f"{path} has {found[0].name} and {found[1].name}: name one of them")
    return found[0] if found else None


def karpathy_tables(path: Path, folder: str | None, counts: Counts) -> dict[str, Table]:
    """Return "train", "validation" and "test" of a file in Karpathy's layout, as far as they are.

    COCO, Flickr30k and Flickr8k are shared so: one JSON object; "images", a list with "filename",
    maybe "split" (train, restval, val, test), and "sentences", each with "raw". Images are found by
    their names, wherever below the folder they lie.
    """

    def read(record: Any) -> dict[str, Any]:
        texts = [one["raw"] for one in record["sentences"]]
        split = str(record.get("split", "train"))
        return {"image": record["filename"].rpartition("/")[2], "text": texts, "split": split}

    records = read_list(path, "images", counts)
    found = list(read_each(records, read, counts, f"{path}, image"))
    splits = np.array([KARPATHY.get(record["split"], "") for record in found])
    for row in np.flatnonzero(splits == ""):
        counts.record(OTHER_SPLITS, str(path), f"{found[row]['image']}: {found[row]['split']}")
    if not splits.any():
        raise ValueError(f"{path} has no images with captions{counts.describe()}")
    root, whole = (
        existing_path(folder) if folder else path,
        table_of_records(found, str(path), path.parent),
    )
    images = named_images(whole.columns["image"], root, image_files(root, counts))
    table = replace(whole, columns={**whole.columns, "image": images})
    return {split: table.take(splits == split)
            for split in ("train", "validation", "test") if split in splits}  # fmt: skip
