"""The cache of prepared data: its directory, fingerprints of its sources, atomic writes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.checksums import check_checksums, write_checksums
from magneto.files import Damaged, aside_path, clear_dead, directory_aside, sync_to_disk
from magneto.progress import SILENT, Progress


def cache_directory() -> Path:
    """Return $MAGNETO_CACHE, or ~/.cache/magneto."""
    return Path(os.environ.get("MAGNETO_CACHE") or Path.home() / ".cache" / "magneto")


def fingerprint(*parts: Any) -> str:
    """Return a short name for whatever the parts describe; equal parts, equal name."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def content_digest(*parts: bytes | np.ndarray) -> str:
    """Return a short name for the content of bytes and arrays, wherever it is kept."""
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        found.update(f"{len(part)}:".encode())
        found.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return found.hexdigest()


def also_known(held: Path, other: Path) -> None:
    """Let what is kept at `held` be found beside it by another name too."""
    with suppress(FileExistsError):
        other.symlink_to(held.name)


def is_kept(held: Path, progress: Progress = SILENT) -> bool:
    """Return whether a directory of the cache is there, as it was written.

    A damaged one is taken away, and said, so that it is made again; see `checksums`.
    """
    if not held.exists():
        return False
    try:
        check_checksums(held)
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
    """Give a directory to fill, which appears at `path`, with checksums, when it is complete.

    If another process was faster, its result stays.

    Raises:
        OSError: If nothing can be written there.
    """
    make_writable(path.parent)
    clear_dead(path.parent)
    with directory_aside(path) as aside:
        yield aside
        write_checksums(aside)
        for made in (*aside.iterdir(), aside):
            sync_to_disk(made)
        try:
            if path.is_symlink():  # another name of what is there no more
                path.unlink()
            aside.rename(path)
        except OSError:
            if not path.is_dir():
                raise
