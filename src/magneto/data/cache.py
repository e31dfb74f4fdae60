"""Cache of prepared data, in directories named after a digest of files and settings.

A directory of the cache is complete or absent. A manifest in the directory has the size, checksum
and modification time of each file.
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
    DamagedError,
    check_directory,
    clear_dead,
    sync_to_disk,
    temporary_directory,
    temporary_path,
    write_json,
)
from magneto.progress import SILENT, Progress

# Version of the cache's content; raise it when the same files and settings give a different result.
VERSION = 5


def cache_directory() -> Path:
    return Path(os.environ.get("MAGNETO_CACHE") or Path.home() / ".cache" / "magneto")


def fingerprint(*parts: Any) -> str:
    text = json.dumps((VERSION, *parts), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def file_states(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return each file's path, size and change time (ctime).

    Programs can set the modification time to an old value, but not the change time.
    """
    paths = list(paths)
    folders = {folder: folder.resolve() for folder in {path.parent for path in paths}}
    found = [(folders[path.parent] / path.name, path.stat()) for path in paths]
    return [(str(place), state.st_size, state.st_ctime_ns) for place, state in found]


def content_digest(*parts: bytes | np.ndarray) -> str:
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        found.update(f"{len(part)}:".encode())
        found.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return found.hexdigest()


def map_array(path: Path, kind: Any) -> np.ndarray:
    if not path.stat().st_size:
        return np.zeros(0, kind)
    return np.memmap(path, kind, mode="r").view(np.ndarray)  # slices of a memmap are slow


def add_alias(path: Path, other: Path) -> None:
    with suppress(FileExistsError):
        other.symlink_to(path.name)


def is_cached(path: Path, progress: Progress = SILENT) -> bool:
    """Return whether a cached directory exists. A damaged directory is reported and removed."""
    if not path.exists():
        return False
    try:
        check_directory(path)
    except DamagedError as error:
        progress.say(f"{error}; creating the directory again")
        damaged = path.resolve()
        temporary = temporary_path(damaged)
        with suppress(FileNotFoundError):  # another process removed it
            damaged.rename(temporary)
        shutil.rmtree(temporary, ignore_errors=True)
        return False
    return True


def ensure_writable(folder: Path) -> None:
    """Create a folder of the cache.

    Raises:
        OSError: If the folder can't be written. The message says how to set another folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(f"cache folder {folder} is not writable ({error.strerror}). Set another "
                      "folder: MAGNETO_CACHE=FOLDER") from error  # fmt: skip


@contextmanager
def create_cached(path: Path) -> Iterator[Path]:
    """Yield an empty directory to fill. After the block, the directory is renamed to `path`.

    If another process has created `path` meanwhile, that directory stays.

    Raises:
        OSError: If the cache is not writable.
    """
    ensure_writable(path.parent)
    clear_dead(path.parent)
    with temporary_directory(path) as temporary:
        yield temporary
        manifest = {
            str(file.relative_to(temporary)): files.fingerprint(file)
            | {CHANGED: file.stat().st_mtime_ns}
            for file in sorted(temporary.rglob("*"))
            if file.is_file()
        }
        write_json(temporary / MANIFEST, manifest)
        sync_to_disk(temporary)
        try:
            if path.is_symlink():  # alias of a directory that is gone
                path.unlink()
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
