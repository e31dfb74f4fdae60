"""Tables of images with captions, questions or statements, and the base class of their tasks.

`magneto.data.formats` reads tables, tar shards and other general sources. Data sets with special
file formats (VQA v2, NLVR2, COCO's captions, Karpathy's layout) have functions that return tables.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from magneto.data.files import existing_path, read_list
from magneto.data.formats import (
    COCO,
    KARPATHY,
    layout_files,
    media_column,
    media_names,
    read_source,
)
from magneto.data.media import IMAGE_ENDINGS, Files
from magneto.data.problems import EMPTY, Counts, DataProblems, read_each
from magneto.data.sources import parse_source, paths_by_split
from magneto.data.table import Table, divide, table_of_records
from magneto.data.tokenizer import Tokenizer, check_vocabulary
from magneto.language.text import build_tokenizer
from magneto.progress import SILENT, Progress
from magneto.vision.images import MISSING_IMAGE, ImageSplit, ImageSplits, find_images, with_images
from magneto.vision.input_size import ImageInputTask
from magneto.vision_language.config import CaptionDataConfig, ImageTextDataConfig
from magneto.vision_language.scenes import scene_pairs

MISSING = "training rows left out because of a missing image"
LOST = "validation rows with a missing image"
LEFT_OUT = "unusable splits left out"
TWICE = "duplicate pairs left out"
SEVERAL = "images left out because an image in an earlier folder has the same name"
# Splits in Karpathy's layout; "restval" is the part of COCO's validation images that is
# used for training.
SPLITS = {"train": "train", "restval": "train", "val": "validation", "test": "test"}
OTHER_SPLITS = "images left out because their split is not train, restval, val or test"

# Batch size of evaluation.
EVALUATION_BATCH = 64

Tables = Callable[[str], Mapping[str, Table]]
"""Function that reads a source, and returns one table with the task's columns for each split."""


class ImageTextTask(ImageInputTask):
    """Base of tasks over images with texts.

    The model section must be a `VisionLanguageConfig`, and the data section an
    `ImageTextDataConfig`. `words` is the plural noun for the texts in messages, such as
    "captions".
    """

    words: ClassVar[str] = "texts"

    @abstractmethod
    def training_texts(self) -> Iterable[str]:
        """Return the texts on which a tokenizer is trained."""

    @property
    def tokenizer_name(self) -> str:
        return self.data_config.tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        name, size = self.tokenizer_name, self.data_config.vocab_size
        texts = self.training_texts() if name == "bpe" else ()
        return build_tokenizer(name, size, texts, self._progress)

    def check(self) -> None:
        check_vocabulary(self.model_config.vocab_size, self.tokenizer.vocab_size)

    def sized_config(self) -> Any:
        size = self.model_config.vocab_size or self.tokenizer.vocab_size
        return replace(self.model_config, vocab_size=size)


def load_rows(
    config: ImageTextDataConfig,
    tables: Tables,
    problems: DataProblems,
    counts: Counts,
    wanted: str = "validation",
    names: tuple[str, ...] = ("image",),
    key: str = "image",
) -> ImageSplits:
    """Return training and validation rows. Training rows with a missing image are left out.

    Missing images are counted, and `problems` records their names. `wanted` is the split to
    validate on. If `wanted` is "validation", `magneto.data.table.divide` chooses the training and
    validation rows. `names` are the columns of images. Rows with the same value in the column `key`
    stay in one split.

    Raises:
        ValueError: If a wanted test split is missing, or if a split has no rows or no images.
    """
    splits, other = tables(config.source), None
    if config.validation_source is not None:
        same = config.validation_source == config.source
        other = splits if same else tables(config.validation_source)
    if wanted == "validation":
        parts = divide(splits, other, config.validation_fraction, key, counts)
    else:
        found, source = other or splits, config.validation_source or config.source
        others = [table for split, table in splits.items() if other or split != wanted]
        if wanted not in found or not others:
            raise ValueError(f"{source} needs a {wanted} split and another split for training, but "
                             f"has {', '.join(found)}: set data.validation_split or "
                             "data.validation_source")  # fmt: skip
        parts = splits.get("train", others[0]), found[wanted]
    train, held = (ImageSplit(part, problems, names) for part in parts)
    gone = missing_images(train)
    for column, lost in zip(train.columns, gone.T, strict=True):
        for row in train.table.rows[lost].tolist():
            problems.record(MISSING_IMAGE, column.name(row), "no such file")
    lacking: np.ndarray = np.any(gone, axis=1)
    counts[MISSING] += int(lacking.sum())
    counts[LOST] += int(missing_images(held).any(1).sum())
    return ImageSplits(train.take(~lacking), held, counts=counts)


def read_each_split(
    splits: Mapping[str, Table],
    read: Callable[[Table, Any, Counts], Table],
    config: ImageTextDataConfig,
    counts: Counts,
    wanted: str = "validation",
) -> dict[str, Table]:
    """Return `read(table, config, counts)` of each split.

    A test split without answers is left out and counted, unless its rows are used for validation.
    """
    found = dict[str, Table]()
    used = {wanted, "train"} if config.validation_source is None else {*splits}
    for split, table in splits.items():
        try:
            found[split] = read(table, config, counts)
        except ValueError as error:
            if split in used or "train" not in splits:
                raise
            counts.record(LEFT_OUT, split, str(error))
    return found


def missing_images(rows: ImageSplit) -> np.ndarray:
    """Return a boolean array (rows, image columns), True for images whose file is missing.

    Raises:
        ValueError: If every row lacks an image.
    """
    found = [column.sizes()[rows.table.rows] < 0 if isinstance(column, Files)
             else np.zeros(len(rows), bool) for column in rows.columns]  # fmt: skip
    gone = np.stack(found, 1)
    if len(rows) and gone.any(1).all():
        first = rows.columns[int(gone[0].argmax())].name(int(rows.table.rows[0]))
        raise ValueError(f"{rows.table.where}: the images of all {len(rows)} rows are missing, "
                         f"such as {first}: set data.image_folder")  # fmt: skip
    return gone


def read_tables(
    source: str, builtin: Callable[[], dict[str, Table]], counts: Counts, progress: Progress
) -> dict[str, Table]:
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
    """Return a table whose columns have the task's names, without rows that lack an image.

    `images` and `words` map the task's column names to the recipe's column names. If the
    recipe's column name is None, the column is found by the names in `COLUMN_ALIASES`. Paths are
    relative to `folder` (None: the table's folder).

    Raises:
        ValueError: If a column is missing, or if no row has an image.
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
    """Return a table with the image columns `images` and with new columns.

    `found` maps a row number to a dict with the row's values in the new columns. Rows that are not
    in `found` are left out.
    """
    if not found:
        raise ValueError(f"{table.where} has no valid rows{counts.describe()}")
    columns: dict[str, Any] = {name: table.columns[name] for name in images}
    size = len(columns[images[0]])
    for name in next(iter(found.values())):
        column: list[Any] = [None] * size
        for row, values in found.items():
            column[row] = values[name]
        columns[name] = column
    return replace(table, columns=columns, rows=np.array([*found], np.int64))


def image_files(folder: Path, counts: Counts) -> dict[str, str]:
    """Return a dict from file names to paths, with all images below a folder.

    Subfolders are searched too. If two files have the same name, the first path in
    alphabetical order is used.
    """
    found: dict[str, str] = {}
    for path in media_names(folder, "image", Counts()):
        counts[SEVERAL] += found.setdefault(path.rpartition("/")[2], path) != path
    if not found:
        raise ValueError(f"no images below {folder} ({', '.join(IMAGE_ENDINGS)}): unpack "
                         "archives first, or set data.image_folder")  # fmt: skip
    return found


def load_captions(
    config: CaptionDataConfig, problems: DataProblems, progress: Progress = SILENT
) -> ImageSplits:
    """Return training and validation rows. Each row has an image and all of its "captions"."""
    counts = Counts()

    def tables(source: str) -> dict[str, Table]:
        if file := karpathy_file(source):
            splits = karpathy_tables(file, existing_path(config.image_folder or source), counts)
        elif files := coco_files(source):
            splits = coco_tables(files, existing_path(config.image_folder or source), counts)
        else:
            splits = read_tables(source, scene_pairs, counts, progress)
        return read_each_split(splits, caption_table, config, counts, wanted)

    wanted = {"val": "validation", "test": "test"}[config.validation_split]
    return load_rows(config, tables, problems, counts, wanted)


def all_captions(rows: ImageSplit) -> list[str]:
    return [text for own in rows.values("captions") for text in own]


def each_caption(rows: ImageSplit) -> ImageSplit:
    """Return one row for each caption, in the order of `all_captions`. Images are repeated."""
    counts = [*map(len, rows.values("captions"))]
    return rows.take(np.arange(len(rows)).repeat(counts))


def caption_table(table: Table, config: CaptionDataConfig, counts: Counts) -> Table:
    names = {"image": config.image_column}, {"text": config.text_column}
    table = find_columns(table, *names, config.image_folder, counts)
    store, texts = table.columns["image"], table.columns["text"]
    first: dict[str, int] = {}
    captions: dict[int, list[str]] = {}
    for row in table.rows.tolist():
        number = first.setdefault(store.key(row), row) if isinstance(store, Files) else row
        for text in texts_of(texts[row]):
            words, known = " ".join(text.split()), captions.get(number, [])
            if not words:
                counts.record(EMPTY, table.place(row), "no text")
            elif words in known:
                counts[TWICE] += 1
            else:
                captions[number] = [*known, words]
    found = {row: {"captions": tuple(own)} for row, own in captions.items()}
    return with_words(table, ("image",), found, counts)


def texts_of(value: Any) -> list[str]:
    texts = value if isinstance(value, list) and value else [value]
    return [text if isinstance(text, str) else "" for text in texts]


def karpathy_file(source: str) -> Path | None:
    found = layout_files(source, KARPATHY)
    if len(found) > 1:
        raise ValueError(
            f"{source} has {found[0].name} and {found[1].name}: set data.source to one of them"
        )
    return found[0] if found else None


def karpathy_tables(path: Path, root: Path, counts: Counts) -> dict[str, Table]:
    """Return the tables "train", "validation" and "test" of a file in Karpathy's layout.

    The files of COCO, Flickr30k and Flickr8k contain a JSON object with a list "images". Each image
    has "filename", "split" and "sentences". The text of a sentence has the key "raw". The value of
    "split" is train, restval, val or test. Images without a split are training images. Images may
    be in any subfolder of `root`.
    """

    def read(record: Any) -> dict[str, Any]:
        texts = [one["raw"] for one in record["sentences"]]
        split = str(record.get("split", "train"))
        return {"image": record["filename"].rpartition("/")[2], "text": texts, "split": split}

    records = read_list(path, "images", counts)
    found = list(read_each(records, read, counts, f"{path}, image"))
    splits = np.array([SPLITS.get(record["split"], "") for record in found])
    for row in np.flatnonzero(splits == ""):
        counts.record(OTHER_SPLITS, str(path), f"{found[row]['image']}: {found[row]['split']}")
    if not splits.any():
        raise ValueError(f"{path} has no images with captions{counts.describe()}")
    root = root.parent if root.is_file() else root
    known, table = image_files(root, counts), table_of_records(found, str(path))
    names: list[str] = table.columns["image"]
    images = Files(root, [known.get(name, name) for name in names])
    table = replace(table, columns={**table.columns, "image": images})
    return {split: table.take(splits == split)
            for split in ("train", "validation", "test") if split in splits}  # fmt: skip


def coco_files(source: str) -> dict[str, Path]:
    found = layout_files(source, COCO)
    splits = paths_by_split(found, [file.name for file in found])
    for one, other, *_ in (own for own in splits.values() if len(own) > 1):
        raise ValueError(f"two files for one split: {one} and {other}. Remove one, or "
                         "set data.source to one file and data.validation_source to another "
                         "file.")  # fmt: skip
    return {split: own[0] for split, own in splits.items()}


def coco_tables(files: Mapping[str, Path], root: Path, counts: Counts) -> dict[str, Table]:
    """Return the tables of COCO's files of captions, such as captions_train2017.json.

    A file contains an object with the lists "images" (with "id" and "file_name") and "annotations"
    (with "image_id" and "caption"). Images may be in any subfolder of `root`. If `root` has a
    folder with the name of the split, such as train2017, only this folder is searched for images.
    """

    def name(record: Any) -> tuple[Any, str]:
        return record["id"], record["file_name"].rpartition("/")[2]

    def table(path: Path) -> Table:
        own = root / path.name.partition(".")[0].partition("_")[2]
        place = own if own.is_dir() else root.parent if root.is_file() else root
        known = image_files(place, counts)
        images = read_list(path, "images", counts)
        names = dict(read_each(images, name, counts, f"{path}, image"))

        def read(record: Any) -> dict[str, Any]:
            return {"image": names[record["image_id"]], "text": record["caption"]}

        records = read_list(path, "annotations", counts)
        found = list(read_each(records, read, counts, f"{path}, annotation"))
        written: list[str] = [one["image"] for one in found]
        files = Files(place, [known.get(each, each) for each in written])
        table = table_of_records(found, str(path))
        return replace(table, columns={**table.columns, "image": files})

    return {split: table(path) for split, path in files.items()}
