"""Standard input in the place of a file: `-`, and /dev/stdin."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from magneto.config import ConfigError

STDIN = "-"
NAMES = (STDIN, "/dev/stdin")


def is_standard_input(name: str | Path) -> bool:
    """Return whether a name on the command line stands for standard input."""
    return str(name) in NAMES


def open_standard_input() -> BinaryIO:
    """Return the bytes of standard input.

    Raises:
        ConfigError: If it is closed.
    """
    if sys.stdin is None:
        raise ConfigError(["standard input must be open, or name a file"])
    return sys.stdin.buffer


def read_input(path: Path) -> bytes:
    """Return the bytes of a file, or of standard input."""
    return open_standard_input().read() if is_standard_input(path) else path.read_bytes()


@contextmanager
def standard_input_as_file(first: bytes = b"", ending: str = "") -> Iterator[Path]:
    """Yield standard input as a file, which can be read more than once; it is gone afterwards.

    Args:
        first: What was read of it already.
        ending: Of the file's name; by default as the first bytes show, for tables and texts.
    """
    source = open_standard_input()
    first = first or source.readline()
    with TemporaryDirectory() as folder:
        path = Path(folder, f"stdin{ending or ending_of(first)}")
        with path.open("wb") as file:
            file.write(first)
            shutil.copyfileobj(source, file)
        yield path


def ending_of(line: bytes) -> str:
    """Return the ending of a table's or a text's name, by its first line."""
    if line.lstrip().startswith(b"{"):
        return ".jsonl"
    return ".tsv" if b"\t" in line else ".txt"
