"""Images in a zip file, read where they lie: nothing has to be unpacked first."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from magneto.vision.images import EncodedStore

# Of a member's own header in the file: all of it, and where two lengths stand that come after it.
HEADER, LENGTHS = 30, slice(26, 30)
METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}


class ZipStore(EncodedStore):
    """Members of a zip file.

    Args:
        path: The file.
        names: Of the members; what is not there can't be read.

    Raises:
        ValueError: If it is no zip file.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.names = path, list(names)
        try:
            with zipfile.ZipFile(path) as file:
                self.members = {member.filename: member for member in file.infolist()}
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is no zip file: {error}") from error

    def __len__(self) -> int:
        return len(self.names)

    def key(self, number: int) -> str:
        """Return the name within the file."""
        return self.names[number]

    def name(self, number: int) -> str:
        """Return the path of the file and the name within it."""
        return f"{self.path}:{self.names[number]}"

    def sizes(self) -> np.ndarray:
        """Return the sizes of the members; -1 of those that are not there."""
        found = (self.members.get(name) for name in self.names)
        return np.array([-1 if one is None else one.file_size for one in found], np.int64)

    def read(self, number: int) -> bytes:
        """Return the content of a member.

        Raises:
            OSError: If it is not there, damaged, or packed otherwise than `METHODS`.
        """
        member = self.members.get(self.names[number])
        if member is None:
            raise FileNotFoundError(2, "no such member", self.name(number))
        if member.compress_type not in METHODS:
            raise OSError(5, "packed by another method than deflate", self.name(number))
        with self.path.open("rb") as file:
            file.seek(member.header_offset)
            header = file.read(HEADER)
            if len(header) < HEADER:
                raise OSError(5, "the zip file is cut off", self.name(number))
            file.seek(sum(struct.unpack("<HH", header[LENGTHS])), 1)
            content = file.read(member.compress_size)
        if member.compress_type == zipfile.ZIP_DEFLATED:
            try:
                content = zlib.decompress(content, -zlib.MAX_WBITS)
            except zlib.error as error:
                raise OSError(5, f"damaged ({error})", self.name(number)) from error
        if zlib.crc32(content) != member.CRC:
            raise OSError(5, "damaged (wrong checksum)", self.name(number))
        return content
