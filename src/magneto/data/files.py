"""Files to read: found, unpacked, without a byte-order mark; damage is a user's error."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from magneto.data.counts import NO_FILES, Counts
from magneto.files import nearest_path, user_path

PACKINGS: dict[str, tuple[str, Any]] = {
    ".gz": ("gzip", gzip.GzipFile), ".xz": ("xz", lzma.LZMAFile), ".bz2": ("bzip2", bz2.BZ2File),
}  # fmt: skip
# First bytes of packed files, whatever they are called; and of files that hold no text at all.
SIGNATURES = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz", b"BZh": ".bz2"}
NO_TEXT = {
    b"PK\x03\x04": "a zip archive", b"%PDF-": "a PDF", b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"7z\xbc\xaf": "a 7z archive", b"PAR1": "a Parquet table",
}  # fmt: skip
# Share of characters that are not UTF-8 above which a file is taken for something else.
MOST_INVALID = 0.3
# Endings that no part of Python 3.11 to 3.13 can read, and what unpacks them.
UNREAD = {".zst": "zstd -d --rm"}
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, OSError)
# Bytes unpacked at a time; and looked at to tell text from what is none.
BUFFER = 1 << 17
FIRST_BLOCK = 1 << 13
FEW_BYTES = 64
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def unpacked_name(path: Path) -> str:
    """Return a file's name without the ending of its packing."""
    packed = path.suffix in PACKINGS or path.suffix in UNREAD
    return path.name.removesuffix(path.suffix) if packed else path.name


def has_ending(path: Path, endings: tuple[str, ...]) -> bool:
    """Return whether a path is a file whose name, unpacked, has one of the endings."""
    return unpacked_name(path).endswith(endings) and os.path.isfile(path)


def existing_path(name: str) -> Path:
    """Return the path of a file or folder.

    Raises:
        FileNotFoundError: If there is none, but maybe a device; names the nearest.
    """
    if not name.strip():
        raise FileNotFoundError("no file or folder is named: the source is empty")
    path = user_path(name)
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file or folder {name}{nearest_path(path)}")
    if not path.is_file() and not path.is_dir():  # a pipe or a device, which may never end
        raise FileNotFoundError(f"{name} is neither a file nor a folder")
    return path


def walk_files(folder: Path, counts: Counts | None = None) -> Iterator[Path]:
    """Yield the files below a folder, in the order of their names, those of a folder first.

    Links to folders are followed, and a folder is visited once, however many links lead to it.
    What is hidden is left out.

    Args:
        folder: Where to begin.
        counts: Told of what is no file: pipes, sockets, devices, links to nothing, and folders
            that can't be read.
    """
    visited = set()
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            found = place.stat()
            if (found.st_dev, found.st_ino) in visited:
                continue
            visited.add((found.st_dev, found.st_ino))
            with os.scandir(place) as opened:
                inside = sorted(opened, key=lambda entry: entry.name)
        except OSError as error:
            if counts is not None:
                counts.met(NO_FILES, str(place), error.strerror or "can't be read")
            continue
        folders = []
        for entry in inside:
            path = place / entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_file(follow_symlinks=False) or os.path.isfile(path):
                yield path
            elif os.path.isdir(path):
                folders.append(path)
            elif counts is not None:
                counts.met(NO_FILES, str(path), "no regular file")
        waiting += reversed(folders)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: If it can't be read, or is a pipe, a socket or a device: to open one may wait for
            ever.
        ValueError: If no path can be so.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return path.read_bytes()


def source_files(source: str, endings: tuple[str, ...]) -> list[Path]:
    """List the files of a path in order: itself, or those of a folder that have an ending.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If a folder holds nothing to read.
    """
    path = existing_path(source)
    if path.is_file():
        return [path]
    files = sorted(file for file in walk_files(path) if has_ending(file, endings))
    if not files:
        raise ValueError(f"nothing to read in {source}: no file ends in {', '.join(endings)}")
    return files


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file, unpacked, behind a UTF-8 byte-order mark if it begins with one.

    What gzip, xz or bzip2 has packed is known by its first bytes, whatever it is called.

    Raises:
        ValueError: Here or on reading on, if a packed file is cut off, damaged or can't be
            unpacked; names it.
    """
    if path.suffix in UNREAD:
        raise ValueError(f"{path}: unpack it first ({UNREAD[path.suffix]} {path.name})")
    raw: Any = io.FileIO(path)
    first = raw.read(8)
    raw.seek(0)
    packing = next((ending for bytes_, ending in SIGNATURES.items() if first.startswith(bytes_)),
                   path.suffix)  # fmt: skip
    if packing in PACKINGS:
        raw.close()
        raw = Unpacked(path, packing)
    file = io.BufferedReader(raw, BUFFER)
    try:
        if file.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
            file.read(len(BYTE_ORDER_MARK))
    except ValueError:
        file.close()
        raise
    return file


def open_text(path: Path) -> io.BufferedReader:
    """Open a file as `open_bytes` does, if it can be text in UTF-8.

    Raises:
        ValueError: If its beginning is that of something else: has NUL bytes, or hardly any UTF-8.
    """
    file = open_bytes(path)
    if why := _no_text(file.peek(FIRST_BLOCK)[:FIRST_BLOCK]):
        file.close()
        raise ValueError(f"{path} is not text in UTF-8: {why}")
    return file


def _no_text(block: bytes) -> str:
    """Return why the first block of a file is no text, or nothing."""
    for signature, kind in NO_TEXT.items():
        if block.startswith(signature):
            return f"it is {kind}"
    if b"\0" in block:
        return "it has NUL bytes"
    characters = block.decode("utf-8", errors="replace")
    replaced = characters.count("\ufffd") - block.count(b"\xef\xbf\xbd")  # less the author's own
    invalid = replaced / max(len(characters), 1)
    if len(block) < FEW_BYTES or invalid <= MOST_INVALID:
        return ""
    return f"{invalid:.0%} of its first characters are not"


class Unpacked(io.RawIOBase):
    """The bytes of a packed file.

    Args:
        path: The file.
        packing: Ending by which it would be known.
    """

    def __init__(self, path: Path, packing: str) -> None:
        self.path = path
        self.kind, unpack = PACKINGS[packing]
        self.file = unpack(path, "rb")

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
        except DAMAGE as error:
            raise ValueError(f"{self.path}: damaged {self.kind} file ({error})") from error

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        super().close()
