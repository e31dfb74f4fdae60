"""Images of the Hugging Face hub, or of a folder of parquet files like one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from magneto.config import nearest
from magneto.data.files import read_bytes
from magneto.data.sources import HubDataset, Source
from magneto.files import import_extra
from magneto.vision.config import ImageDataConfig
from magneto.vision.images import NO_MASKS, UNLABELLED, EncodedStore
from magneto.vision.listing import Listing, number_labels, standard_splits
from magneto.vision.tables import IMAGE_COLUMNS, LABEL_COLUMNS, MASK_COLUMNS


class TableStore(EncodedStore):
    """Images in a column of a data set; the bytes of a file each, or its path.

    Args:
        table: The data set, of that column alone, which isn't decoded.
        column: Its name.
        where: The source, for messages.
    """

    def __init__(self, table: Any, column: str, where: str) -> None:
        self.table, self.column, self.where = table, column, where

    def __len__(self) -> int:
        return len(self.table)

    def _field(self, name: str) -> Any:
        arrow = self.table.with_format("arrow")[:]
        return [chunk.field(name) for chunk in arrow[self.column].chunks]

    @cached_property
    def _paths(self) -> list[str | None]:
        return [path for chunk in self._field("path") for path in chunk.to_pylist()]

    def key(self, number: int) -> str:
        """Return the path that the data set has, or the row's number."""
        return self._paths[number] or str(number)

    def name(self, number: int) -> str:
        """Return the source and the row's number, from 0."""
        return f"{self.where}, row {number}"

    def sizes(self) -> np.ndarray:
        """Return the bytes of each image; -1 where the data set has a path alone."""
        compute: Any = import_extra("pyarrow.compute", "hf", "hf: sources need pyarrow")
        lengths = [compute.binary_length(chunk).to_pylist() for chunk in self._field("bytes")]
        return np.array([-1 if n is None else n for part in lengths for n in part], np.int64)

    def read(self, number: int) -> bytes:
        """Return the bytes of an image.

        Raises:
            OSError: If the data set has none, and the file is not there.
        """
        value = self.table[number][self.column] or {}
        if value.get("bytes") is None:
            return read_bytes(Path(value.get("path") or ""))
        return value["bytes"]


def chosen_splits(dataset: HubDataset, source: Source) -> dict[str, str]:
    """Return the data set's own names of "train", "validation", ..., as far as it has them.

    A split that the source names is "train"; so is the first, where no name says what it is for.

    Raises:
        ConfigError: If the data set can't be found.
    """
    if source.split:
        return {"train": source.split}
    names = dataset.splits(source.config)
    return standard_splits({name.lower(): name for name in names}) or {"train": names[0]}


def list_hub(source: Source, config: ImageDataConfig) -> dict[str, Listing]:
    """List the splits of a data set, or the one that the source names, as "train".

    Raises:
        ConfigError: If it can't be loaded.
        ValueError: If it has no column of images.
    """
    dataset = HubDataset(source)
    return {
        split: _listing(dataset, dataset.load(source.config, name), f"{source} ({name})", config)
        for split, name in chosen_splits(dataset, source).items()
    }


def _listing(dataset: HubDataset, table: Any, where: str, config: ImageDataConfig) -> Listing:
    kinds = {name: type(feature).__name__ for name, feature in table.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    for given in (config.image_column, config.label_column, config.mask_column):
        if given and given not in kinds:
            raise ValueError(f"{where} has no column {given!r}{nearest(given, list(kinds))}")
    masks = _pick(config.mask_column, MASK_COLUMNS, images)
    plain = [name for name in images if name != masks]
    image = _pick(config.image_column, IMAGE_COLUMNS, plain) or next(iter(plain), None)
    if image is None or kinds[image] != "Image":
        raise ValueError(f"{where} has no images in {image or 'any column'} "
                         f"(it has {', '.join(kinds)})")  # fmt: skip
    label = _pick(config.label_column, LABEL_COLUMNS, list(kinds))
    if config.label_column is None and label is None and len(classes) == 1:
        label = classes[0]
    store = _store(dataset, table, image, where)
    found = NO_MASKS if masks is None else _store(dataset, table, masks, where)
    return Listing(store, *_labels(table, label), found)


def _pick(given: str | None, usual: Sequence[str], there: Sequence[str]) -> str | None:
    """Return the column that the recipe names ("" is none), or the first usual one there is."""
    if given is not None:
        return given or None
    return next((name for name in usual if name in there), None)


def _store(dataset: HubDataset, table: Any, column: str, where: str) -> TableStore:
    alone = table.select_columns([column])
    return TableStore(alone.cast_column(column, dataset.library.Image(decode=False)), column, where)


def _labels(table: Any, column: str | None) -> tuple[np.ndarray, list[str]]:
    """Return the labels of a column and the names of the classes."""
    if column is None:
        return np.full(len(table), UNLABELLED, np.int64), []
    values = table.select_columns([column]).with_format("arrow")[:][column].to_pylist()
    feature = table.features[column]
    if type(feature).__name__ == "ClassLabel":
        known = [UNLABELLED if value is None or value < 0 else value for value in values]
        return np.array(known, np.int64), list(feature.names)
    return number_labels([None if value is None else str(value) for value in values])
