"""The cache of prepared data: named by files and settings, written whole, opened as it was written.

Of each file of a directory of the cache the manifest has size, checksum and time of change.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from magneto import files
from magneto.files import (
    CHANGED,
    MANIFEST,
    Damaged,
    aside_path,
    check_directory,
    clear_dead,
    directory_aside,
    sync_to_disk,
    write_json,
)
from magneto.progress import SILENT, Progress

# Of all that is kept: another number where the same files and settings give something else.
VERSION = 3


def cache_directory() -> Path:
    """Return $MAGNETO_CACHE, or ~/.cache/magneto."""
    return Path(os.environ.get("MAGNETO_CACHE") or Path.home() / ".cache" / "magneto")


def fingerprint(*parts: Any) -> str:
    """Return a short name for whatever the parts describe; equal parts, equal name."""
    text = json.dumps((VERSION, *parts), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def file_states(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return place, size and time of change of files, which name what is in them.

    The time is that of the file's entry: programs can't set it back.

    Raises:
        OSError: If one is not there.
    """
    paths = list(paths)
    folders = {folder: folder.resolve() for folder in {path.parent for path in paths}}
    found = [(folders[path.parent] / path.name, path.stat()) for path in paths]
    return [(str(place), state.st_size, state.st_ctime_ns) for place, state in found]


def content_digest(*parts: bytes | np.ndarray) -> str:
    """Return a short name for the content of bytes and arrays, wherever it is kept."""
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        found.update(f"{len(part)}:".encode())
        found.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return found.hexdigest()


def map_numbers(path: Path, kind: Any) -> np.ndarray:
    """Return the numbers in a file, mapped and not read; what is empty can't be mapped."""
    if not path.stat().st_size:
        return np.zeros(0, kind)
    return np.memmap(path, kind, mode="r").view(np.ndarray)  # parts of a memmap are slow to make


def also_known(held: Path, other: Path) -> None:
    """Let what is kept at `held` be found beside it by another name too."""
    with suppress(FileExistsError):
        other.symlink_to(held.name)


def is_kept(held: Path, progress: Progress = SILENT) -> bool:
    """Return whether a directory of the cache is there, as it was written.

    A damaged one is taken away, and said, so that it is made again.
    """
    if not held.exists():
        return False
    try:
        check_directory(held)
    except Damaged as error:
        progress.say(f"{error}: made again")
        damaged = held.resolve()
        aside = aside_path(damaged)
        with suppress(FileNotFoundError):  # another process was faster
            damaged.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return False
    return True


def make_writable(folder: Path) -> None:
    """Make a folder of the cache, and see that something can be written there.

    Raises:
        OSError: If not; says what to do.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        why = f"no prepared data can be kept in {folder} ({error.strerror})"
        raise OSError(f"{why}: give a folder that can be written, MAGNETO_CACHE=...") from error


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """Give a directory to fill, which appears at `path`, with a manifest, when it is complete.

    If another process was faster, its result stays.

    Raises:
        OSError: If nothing can be written there.
    """
    make_writable(path.parent)
    clear_dead(path.parent)
    with directory_aside(path) as aside:
        yield aside
        manifest = {
            str(file.relative_to(aside)): files.fingerprint(file)
            | {CHANGED: file.stat().st_mtime_ns}
            for file in sorted(aside.rglob("*"))
            if file.is_file()
        }
        write_json(aside / MANIFEST, manifest)
        sync_to_disk(aside)
        try:
            if path.is_symlink():  # another name of what is there no more
                path.unlink()
            aside.rename(path)
        except OSError:
            if not path.is_dir():
                raise
