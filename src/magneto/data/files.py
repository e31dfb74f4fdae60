"""Open a file to read its bytes: unpacked, without a byte-order mark; damage is a user's error."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import IO, Any

# Bytes unpacked at a time.
BUFFER = 1 << 17
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, unpacking .gz, behind a UTF-8 byte-order mark if it begins with one.

    Raises:
        ValueError: Here or on reading on, if a .gz is cut off or damaged; names it.
    """
    raw: Any = Unpacked(path) if path.name.endswith(".gz") else io.FileIO(path)
    file = io.BufferedReader(raw, BUFFER)
    try:
        if file.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
            file.read(len(BYTE_ORDER_MARK))
    except ValueError:
        file.close()
        raise
    return file


class Unpacked(io.RawIOBase):
    """The bytes of a .gz.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = gzip.GzipFile(path, "rb")

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer.

        Raises:
            ValueError: If the file is cut off or damaged.
        """
        try:
            return self.file.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{self.path}: damaged gzip file ({error})") from error

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        super().close()
