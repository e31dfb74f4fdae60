"""The cache of prepared data: its directory, fingerprints of its sources, atomic writes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np


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


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """Give a directory to fill, which appears at `path` when it is complete.

    If another process was faster, its result stays.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        try:
            if path.is_symlink():  # another name of what is there no more
                path.unlink()
            aside.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
