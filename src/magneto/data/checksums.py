"""Checksums of directories that are made once and read often: written with them, checked cheaply.

Every block of every file has a checksum in the directory's manifest. On opening, all blocks are
compared where that is quick, or where a file's size, times or number on the disk are not those it
had; of large files that look untouched only some blocks are, drawn anew each time.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from magneto.files import MANIFEST, Damaged, read_json, write_json

BLOCK = 1 << 20
# Blocks read of a file that looks untouched: 32 MB, some hundredths of a second.
SAMPLE = 32

State = list[int]


def file_state(path: Path) -> State:
    """Return size, time of change, time of the last change to its entry, and number of a file.

    The third can't be set by programs: what was written and then given its old time is seen.
    """
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def block_checksums(path: Path, blocks: Sequence[int] | None = None) -> list[int]:
    """Return the checksums of a file's blocks: of those with these numbers, or of all."""
    size = path.stat().st_size
    wanted = range(-(-size // BLOCK)) if blocks is None else blocks
    sums = []
    with path.open("rb") as file:
        for number in wanted:
            file.seek(number * BLOCK)
            sums.append(zlib.crc32(file.read(BLOCK)))
    return sums


def write_checksums(directory: Path) -> None:
    """Write the manifest of a filled directory into it."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    manifest = {
        str(path.relative_to(directory)): {"blocks": block_checksums(path)} for path in files
    }
    for path in files:
        manifest[str(path.relative_to(directory))]["state"] = file_state(path)
    write_json(directory / MANIFEST, manifest)


def check_checksums(directory: Path) -> None:
    """Compare a directory with its manifest.

    Raises:
        Damaged: If a file is not as it was written, or there is no manifest.
        OSError: If a file is there and can't be read.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise Damaged(f"{directory} has no {MANIFEST}")
    manifest, moved = read_json(path), False
    if not isinstance(manifest, dict):
        raise Damaged(f"{path} is not as it was written")
    for name, entry in manifest.items():
        try:
            moved |= _check_file(directory / name, entry)
        except (FileNotFoundError, KeyError, TypeError) as error:
            raise Damaged(f"{directory / name} is missing, or {MANIFEST} is wrong") from error
    if moved:  # copied from elsewhere, and whole
        with suppress(OSError):  # where it can only be read
            write_json(path, manifest)


def _check_file(path: Path, entry: dict[str, Any]) -> bool:
    """Compare a file with its entry; return whether its state was another, which is noted."""
    state, sums = file_state(path), entry["blocks"]
    touched = state != entry["state"]
    numbers = list(range(len(sums)))
    if not touched and len(sums) > SAMPLE:
        numbers = sorted(random.SystemRandom().sample(numbers, SAMPLE))
    whole = len(sums) == -(-state[0] // BLOCK)
    if not whole or block_checksums(path, numbers) != [sums[number] for number in numbers]:
        raise Damaged(f"{path} is not as it was written")
    entry["state"] = state
    return touched
