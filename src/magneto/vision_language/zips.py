"""Images in zip files, read in place."""

from __future__ import annotations

import errno
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from magneto.vision.images import EncodedStore

# A member's own header is this long, then its name and an extra field; their lengths stand in it.
HEADER, LENGTHS = 30, 26


class ZipStore(EncodedStore):
    """Images in zip files. Nothing stays open, so that processes may be forked.

    Args:
        archives: The files.
        keys: Names of the members.
        places: (number of the archive, first byte of the member's header, bytes as packed, bytes
            unpacked, method of packing) of each, int64 (count, 5).
    """

    def __init__(self, archives: Sequence[Path], keys: Sequence[str], places: np.ndarray) -> None:
        self.archives, self.keys, self.places = archives, keys, places

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, number: int) -> str:
        """Return the name in the archive."""
        return self.keys[number]

    def name(self, number: int) -> str:
        """Return archive and name."""
        return f"{self.archives[self.places[number, 0]]}, {self.keys[number]}"

    def sizes(self) -> np.ndarray:
        """Return the bytes of each image, unpacked."""
        return np.ascontiguousarray(self.places[:, 3])

    def read(self, number: int) -> bytes:
        """Return the bytes of an image.

        Raises:
            OSError: If the archive can't be read, or is damaged there.
        """
        archive, header, packed, size, method = self.places[number].tolist()
        with self.archives[archive].open("rb") as file:
            file.seek(header + LENGTHS)
            lengths = np.frombuffer(file.read(4), "<u2")
            file.seek(header + HEADER + int(lengths.sum()))
            content = file.read(packed)
        try:
            found = content if method == zipfile.ZIP_STORED else zlib.decompress(content, -15)
        except zlib.error as error:
            raise OSError(errno.EIO, f"damaged zip file: {error}") from error
        if len(found) != size:
            raise OSError(errno.EIO, "damaged zip file: cut off")
        return found


def open_zips(archives: Sequence[Path], endings: tuple[str, ...]) -> ZipStore:
    """List the members of zip files whose names have one of the endings, in lower case.

    Raises:
        ValueError: If an archive is damaged, or packs an image in a way that is not read here.
    """
    keys, places = [], []
    for number, archive in enumerate(archives):
        try:
            with zipfile.ZipFile(archive) as opened:
                members = [m for m in opened.infolist() if m.filename.lower().endswith(endings)]
        except (zipfile.BadZipFile, OSError) as error:
            raise ValueError(f"{archive}: damaged zip file ({error})") from error
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{archive}: {member.filename} is packed by method "
                                 f"{member.compress_type}: unpack the archive")  # fmt: skip
            keys.append(member.filename)
            places.append((number, member.header_offset, member.compress_size, member.file_size,
                           member.compress_type))  # fmt: skip
    return ZipStore(archives, keys, np.array(places, np.int64).reshape(-1, 5))
