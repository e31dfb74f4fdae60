"""Columns of images or recordings.

Media are files, members of tar shards, or values of a Hugging Face data set. A column reads the
bytes of an image or recording only in calls of `read` and `file`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ENOENT
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.cache import file_states
from magneto.data.files import read_bytes

# Lower-case endings of media files. The content decides how a file is decoded.
IMAGE_ENDINGS = (
    ".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
    ".pbm", ".jp2", ".avif",
)  # fmt: skip
AUDIO_ENDINGS = (".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff", ".sph")
ENDINGS = {"image": IMAGE_ENDINGS, "audio": AUDIO_ENDINGS}
"""File endings by kind of media."""


class MediaColumn(ABC):
    """Base class of table columns that contain media, such as images.

    `kind` is "image" or "audio" if the source tells the kind of media, or else "".
    """

    kind: str = ""

    @abstractmethod
    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any:
        return Medium(self, number)

    @abstractmethod
    def key(self, number: int) -> str:
        """Return a medium's key, which stays the same if the source is moved."""

    def name(self, number: int) -> str:
        """Return where the medium is, as text for error messages."""
        return self.key(number)

    def sizes(self) -> np.ndarray:
        """Return sizes in bytes, int64; -1 for a missing medium or an unknown size."""
        return np.full(len(self), -1, np.int64)

    @abstractmethod
    def read(self, number: int) -> bytes:
        """Return the bytes of a medium.

        Raises:
            OSError: If the medium can't be read.
        """

    def file(self, number: int) -> str | bytes:
        """Return the path of the medium if it is a separate file, else its bytes.

        Raises:
            OSError: If the medium can't be read.
        """
        return self.read(number)

    def state(self) -> Any:
        """Return JSON values that identify the column's content."""
        return [self.key(number) for number in range(len(self))]

    def present(self) -> np.ndarray:
        """Return a boolean array: True for each row that has an image or a recording."""
        return np.ones(len(self), bool)


@dataclass(frozen=True)
class Medium:
    """One image or recording in a column of media.

    Each method calls the column's method of the same name.
    """

    column: MediaColumn
    number: int

    @property
    def name(self) -> str:
        return self.column.name(self.number)

    def read(self) -> bytes:
        return self.column.read(self.number)

    def file(self) -> str | bytes:
        return self.column.file(self.number)


def size_of(path: Path) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else -1


class Files(MediaColumn):
    """Column of media that are separate files, not members of tar files.

    Relative paths start at `root`. In `names`, a row without a file has the name "".
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root, self.names = root, names

    def __len__(self) -> int:
        return len(self.names)

    def key(self, number: int) -> str:
        """Return the normalised path, relative to `root` if the file is inside `root`."""
        name = self.names[number]
        if not name:
            return ""
        plain = os.path.normpath(name)
        if not os.path.isabs(plain):
            return plain
        return plain.removeprefix(os.path.abspath(self.root).rstrip("/") + "/")

    def name(self, number: int) -> str:
        return str(self.root / self.names[number])

    @cached_property
    def _sizes(self) -> np.ndarray:
        known = {name: size_of(self.root / name) for name in dict.fromkeys(self.names)}
        return np.array([known[name] for name in self.names], np.int64)

    def sizes(self) -> np.ndarray:
        return self._sizes

    def read(self, number: int) -> bytes:
        if not self.names[number]:
            raise FileNotFoundError(ENOENT, "the row has no file name")
        return read_bytes(self.root / self.names[number])

    def file(self, number: int) -> str:
        return self.name(number)

    def state(self) -> Any:
        names = dict.fromkeys(self.names)
        present = {name: path for name in names if os.path.isfile(path := self.root / name)}
        states = dict(zip(present, file_states(present.values()), strict=True))
        return [states.get(name) for name in self.names]

    def present(self) -> np.ndarray:
        return np.array([bool(name) for name in self.names], bool)


class Members(MediaColumn):
    """Column of images or recordings in tar files.

    Args:
        shards: Paths of the tar files.
        keys: Key of each example.
        places: Place of each example's image or recording, int64 (examples, 3). The columns are the
            tar file's number, the first byte, and the size in bytes. The tar file's number is -1
            for an example without an image or recording.
    """

    def __init__(self, shards: Sequence[Path], keys: Sequence[str], places: np.ndarray) -> None:
        self.shards, self.keys, self.places = shards, keys, places

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, number: int) -> str:
        return self.keys[number]

    def name(self, number: int) -> str:
        return f"{self.shards[self.places[number, 0]]}, {self.keys[number]}"

    def sizes(self) -> np.ndarray:
        return np.ascontiguousarray(self.places[:, 2])

    def read(self, number: int) -> bytes:
        shard, first, size = self.places[number].tolist()
        if shard < 0:
            raise FileNotFoundError(ENOENT, "the row has no file name")
        with self.shards[shard].open("rb") as file:
            file.seek(first)
            return file.read(size)

    def state(self) -> Any:
        return file_states(self.shards), self.places.tolist()

    def present(self) -> np.ndarray:
        return self.places[:, 0] >= 0


class HubMedia(MediaColumn):
    """Column of a Hugging Face data set, with the bytes or the path of each file.

    `dataset` has only the column `column`, with undecoded media. `where` names the source in
    messages.
    """

    def __init__(self, dataset: Any, column: str, where: str, kind: str) -> None:
        self.dataset, self.column, self.where, self.kind = dataset, column, where, kind

    def __len__(self) -> int:
        return len(self.dataset)

    def _field(self, name: str) -> Any:
        arrow = self.dataset.with_format("arrow")[:]
        return [chunk.field(name) for chunk in arrow[self.column].chunks]

    @cached_property
    def _paths(self) -> list[str | None]:
        found = [path for chunk in self._field("path") for path in chunk.to_pylist()]
        # Paths shared by several rows, such as image.png, identify nothing.
        return found if len(set(found)) == len(found) else [None] * len(found)

    def key(self, number: int) -> str:
        return self._paths[number] or str(number)

    def name(self, number: int) -> str:
        return f"{self.where}, row {number}"

    def sizes(self) -> np.ndarray:
        compute: Any = import_module("pyarrow.compute")  # the package `datasets` needs it
        lengths = [compute.binary_length(chunk).to_pylist() for chunk in self._field("bytes")]
        return np.array([-1 if n is None else n for part in lengths for n in part], np.int64)

    def read(self, number: int) -> bytes:
        found = self.file(number)
        return read_bytes(Path(found)) if isinstance(found, str) else found

    def file(self, number: int) -> str | bytes:
        value = self.dataset[number][self.column] or {}
        return (value.get("path") or "") if value.get("bytes") is None else value["bytes"]

    def state(self) -> Any:
        return self.dataset._fingerprint
