"""Where prepared data is kept, and how a piece of it is known again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def cache_directory() -> Path:
    """Return $MAGNETO_CACHE, or ~/.cache/magneto."""
    return Path(os.environ.get("MAGNETO_CACHE") or Path.home() / ".cache" / "magneto")


def fingerprint(*parts: Any) -> str:
    """Return a short name for whatever the parts describe; equal parts, equal name."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


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
            aside.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
