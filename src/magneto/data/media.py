"""Columns of files: images or recordings by number, whose bytes are read when they are asked for.

They lie in files of their own, in tar shards, or in a data set of the hub. Data workers, which are
forked, read them at the same time.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ENOENT
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.cache import file_states
from magneto.data.files import read_bytes
from magneto.files import import_extra

# Endings of media files, in lower case. What is in them decides how they are read.
IMAGE_ENDINGS = (
    ".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
    ".pbm", ".jp2", ".avif",
)  # fmt: skip
AUDIO_ENDINGS = (".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff", ".sph")
ENDINGS = {"image": IMAGE_ENDINGS, "audio": AUDIO_ENDINGS}
"""By kind, which is also what a column of them is called."""


class MediaColumn(ABC):
    """Media by number."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any:
        """Return one of them."""
        return Medium(self, number)

    @abstractmethod
    def key(self, number: int) -> str:
        """Return what one is called within its source, wherever that lies."""

    def name(self, number: int) -> str:
        """Return where one lies, for messages."""
        return self.key(number)

    def sizes(self) -> np.ndarray:
        """Return the bytes of each, int64; -1 where that is not known, or there is no file."""
        return np.full(len(self), -1, np.int64)

    @abstractmethod
    def read(self, number: int) -> bytes:
        """Return the bytes of one.

        Raises:
            OSError: If they can't be read.
        """

    def file(self, number: int) -> str | bytes:
        """Return the path of one that is a file of its own, else its bytes.

        Raises:
            OSError: If they can't be read.
        """
        return self.read(number)

    def state(self) -> Any:
        """Return plain values that name the content of all, and change with it."""
        return [self.key(number) for number in range(len(self))]

    def present(self) -> np.ndarray:
        """Return whether a row names one, bool; the file may be missing nevertheless."""
        return np.ones(len(self), bool)


@dataclass(frozen=True)
class Medium:
    """One of a column."""

    column: MediaColumn
    number: int

    @property
    def name(self) -> str:
        """Where it lies, for messages."""
        return self.column.name(self.number)

    def read(self) -> bytes:
        """Return its bytes.

        Raises:
            OSError: If they can't be read.
        """
        return self.column.read(self.number)

    def file(self) -> str | bytes:
        """Return its path, if it is a file of its own, else its bytes.

        Raises:
            OSError: If they can't be read.
        """
        return self.column.file(self.number)


def size_of(path: Path) -> int:
    """Return the bytes of a file; -1 where there is none."""
    return os.path.getsize(path) if os.path.isfile(path) else -1


class Files(MediaColumn):
    """Files.

    Args:
        root: Folder that names are relative to.
        names: Paths, with "/" between their parts; "" where there is none.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root, self.names = root, names

    def __len__(self) -> int:
        return len(self.names)

    def key(self, number: int) -> str:
        """Return the path within the folder, however it is written."""
        name = self.names[number]
        if not name:
            return ""
        plain = os.path.normpath(name)
        if not os.path.isabs(plain):
            return plain
        return plain.removeprefix(os.path.abspath(self.root).rstrip("/") + "/")

    def name(self, number: int) -> str:
        """Return the path."""
        return str(self.root / self.names[number])

    def sizes(self) -> np.ndarray:
        """Return the sizes of the files."""
        known = {name: size_of(self.root / name) for name in dict.fromkeys(self.names)}
        return np.array([known[name] for name in self.names], np.int64)

    def read(self, number: int) -> bytes:
        """Return the content of a file."""
        if not self.names[number]:
            raise FileNotFoundError(ENOENT, "there is none")
        return read_bytes(self.root / self.names[number])

    def file(self, number: int) -> str:
        """Return the path."""
        return self.name(number)

    def state(self) -> Any:
        """Return place, size and time of change of each file that is there."""
        names = dict.fromkeys(self.names)
        there = {name: path for name in names if os.path.isfile(path := self.root / name)}
        states = dict(zip(there, file_states(there.values()), strict=True))
        return [states.get(name) for name in self.names]

    def present(self) -> np.ndarray:
        """Return whether there is a name."""
        return np.array([bool(name) for name in self.names], bool)


class Members(MediaColumn):
    """Members of tar files.

    Args:
        shards: The files.
        keys: Of the examples.
        places: (number of the shard, first byte, bytes) of each, int64 (count, 3); the number is -1
            where there is none.
    """

    def __init__(self, shards: Sequence[Path], keys: Sequence[str], places: np.ndarray) -> None:
        self.shards, self.keys, self.places = shards, keys, places

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, number: int) -> str:
        """Return the key in the shard."""
        return self.keys[number]

    def name(self, number: int) -> str:
        """Return shard and key."""
        return f"{self.shards[self.places[number, 0]]}, {self.keys[number]}"

    def sizes(self) -> np.ndarray:
        """Return the bytes of each."""
        return np.ascontiguousarray(self.places[:, 2])

    def read(self, number: int) -> bytes:
        """Return the bytes of one."""
        shard, first, size = self.places[number].tolist()
        if shard < 0:
            raise FileNotFoundError(ENOENT, "there is none")
        with self.shards[shard].open("rb") as file:
            file.seek(first)
            return file.read(size)

    def state(self) -> Any:
        """Return size and time of change of the shards, and the places in them."""
        return file_states(self.shards), self.places.tolist()

    def present(self) -> np.ndarray:
        """Return whether an example has one."""
        return self.places[:, 0] >= 0


class HubMedia(MediaColumn):
    """A column of a data set of the hub: the bytes of a file each, or its path.

    Args:
        dataset: Of that column alone, which isn't decoded.
        column: Its name.
        where: The source, for messages.
    """

    def __init__(self, dataset: Any, column: str, where: str) -> None:
        self.dataset, self.column, self.where = dataset, column, where

    def __len__(self) -> int:
        return len(self.dataset)

    def _field(self, name: str) -> Any:
        arrow = self.dataset.with_format("arrow")[:]
        return [chunk.field(name) for chunk in arrow[self.column].chunks]

    @cached_property
    def _paths(self) -> list[str | None]:
        found = [path for chunk in self._field("path") for path in chunk.to_pylist()]
        # Paths that several rows have, such as image.png, tell nothing.
        return found if len(set(found)) == len(found) else [None] * len(found)

    def key(self, number: int) -> str:
        """Return the path that the data set has, or the row's number."""
        return self._paths[number] or str(number)

    def name(self, number: int) -> str:
        """Return the source and the row's number, from 0."""
        return f"{self.where}, row {number}"

    def sizes(self) -> np.ndarray:
        """Return the bytes of each; -1 where the data set has a path alone."""
        compute: Any = import_extra("pyarrow.compute", "hf", "hf: sources need pyarrow")
        lengths = [compute.binary_length(chunk).to_pylist() for chunk in self._field("bytes")]
        return np.array([-1 if n is None else n for part in lengths for n in part], np.int64)

    def read(self, number: int) -> bytes:
        """Return the bytes of one; of a file where the data set has its path alone."""
        found = self.file(number)
        return read_bytes(Path(found)) if isinstance(found, str) else found

    def file(self, number: int) -> str | bytes:
        """Return the path, where the data set has that alone, else the bytes."""
        value = self.dataset[number][self.column] or {}
        return (value.get("path") or "") if value.get("bytes") is None else value["bytes"]

    def state(self) -> Any:
        """Return the name that the library gives the content."""
        return self.dataset._fingerprint
