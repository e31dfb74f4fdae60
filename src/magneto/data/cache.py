"""The cache of prepared data: its directory, fingerprints of its sources, atomic writes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from magneto.files import clear_dead, directory_aside, sync_to_disk


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


def file_states(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of files, by which their content is known."""
    states = ((file, file.stat()) for file in files)
    return [(str(file.resolve()), state.st_size, state.st_mtime_ns) for file, state in states]


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """Give a directory to fill, which appears at `path` when it is complete.

    If another process was faster, its result stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_dead(path.parent)
    with directory_aside(path) as aside:
        yield aside
        for made in (*aside.iterdir(), aside):
            sync_to_disk(made)
        try:
            if path.is_symlink():  # another name of what is there no more
                path.unlink()
            aside.rename(path)
        except OSError:
            if not path.is_dir():
                raise
