"""Atomic writes: a file is there complete or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


class Damaged(ValueError):
    """A directory whose files are not what its manifest says."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON aside and rename it into place."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, default=str)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def plain(value: Any) -> Any:
    """Return the value with numbers that are not finite, which JSON has not, as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def clear_aside(directory: Path) -> None:
    """Remove what a killed process left half-written, and finish a replacement it began."""
    for path in directory.glob(".*"):
        replaced = directory / path.stem.removeprefix(".")
        if path.suffix == ".old" and not replaced.exists():
            path.rename(replaced)
        elif path.is_dir() and (path.suffix == ".old" or path.suffix[1:].isdigit()):
            shutil.rmtree(path)
        elif path.suffix[1:].isdigit():
            path.unlink()


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Give a directory to fill; it appears at `path` with a manifest, complete, or not at all."""
    aside = aside_path(path, os.getpid())
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        publish(aside, path, {p.name: fingerprint(p) for p in sorted(aside.iterdir())})
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def aside_path(path: Path, process: int) -> Path:
    """Return where a process writes what shall appear at `path`; `clear_aside` knows such names."""
    return path.with_name(f".{path.name}.{process}")


def publish(aside: Path, path: Path, manifest: dict[str, dict[str, int]]) -> None:
    """Put a filled directory in its place, in place of what stands there.

    Args:
        aside: Holds the files.
        path: Where it shall be.
        manifest: Fingerprint of each file by name.
    """
    write_json(aside / MANIFEST, manifest)
    _sync(aside)
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        aside.rename(path)
        shutil.rmtree(old)
    else:
        aside.rename(path)
    _sync(path.parent)


def check_directory(path: Path) -> None:
    """Compare a directory with its manifest.

    Raises:
        Damaged: If a file is missing, or has another size or checksum.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(f"{path}: {error}") from error
    if not isinstance(manifest, dict):
        raise Damaged(f"{path / MANIFEST} is not as it was written")
    for name, expected in manifest.items():
        try:
            found = fingerprint(path / name, sync=False)
        except OSError as error:
            raise Damaged(f"{path}: {error}") from error
        if found != expected:
            raise Damaged(f"{path / name} is not as it was written")


def fingerprint(path: Path, sync: bool = True) -> dict[str, int]:
    """Return the size and the checksum of a file; with `sync` it is on the disk afterwards."""
    checksum, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
        if sync:
            os.fsync(file.fileno())
    return {"bytes": size, "crc32": checksum}


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
