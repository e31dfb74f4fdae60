"""Files known by their content: hashed once, and again only where they may have changed.

What was hashed is noted in the cache with the file's size, times and number on the disk. Where all
of them agree, and some blocks of the content do, the note is believed. Every change through a
local file system alters one of them: the time at which a file's entry last changed can't be set.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from magneto.data.cache import cache_directory, fingerprint
from magneto.data.checksums import BLOCK, SAMPLE, State, block_checksums, file_state
from magneto.files import Damaged, read_json, write_json
from magneto.progress import SILENT, Progress

# A file that changed within so many nanoseconds before it was hashed may change again without its
# times showing it: file systems count time in ticks.
TICK = 2_000_000_000


def file_contents(files: Iterable[Path], progress: Progress = SILENT) -> list[tuple[str, int, str]]:
    """Return name, size and digest of files; not where they lie, nor when they were written."""
    found = []
    for path in files:
        digest = _noted(path) or _hashed(path, progress)
        found.append((path.name, path.stat().st_size, digest))
    return found


def _note(path: Path) -> Path:
    """Return where the digest of a file is noted."""
    return cache_directory() / "contents" / f"{fingerprint(str(path.resolve()))}.json"


def _noted(path: Path) -> str | None:
    """Return the digest that was noted of a file, if the file is the same."""
    try:
        note: Any = read_json(_note(path))
        numbers = [number for number, _ in note["blocks"]]
        if note["state"] != file_state(path):
            return None
        same = block_checksums(path, numbers) == [checksum for _, checksum in note["blocks"]]
        return str(note["digest"]) if same else None
    except (OSError, Damaged, KeyError, TypeError, ValueError):
        return None


def _hashed(path: Path, progress: Progress) -> str:
    """Hash a whole file; note the digest, unless it changed meanwhile or a moment ago."""
    before, began = file_state(path), time.time_ns()
    digest, done = hashlib.blake2b(digest_size=20), 0
    what = f"reading {path.name}, MB"
    with path.open("rb") as file:
        while block := file.read(16 * BLOCK):
            digest.update(block)
            done += len(block)
            if before[0] > 64 * BLOCK:
                progress.update(what, done >> 20, before[0] >> 20)
    state = file_state(path)
    if state == before and began - max(state[1:3]) > TICK:
        with suppress(OSError):  # a cache that can only be read
            note = _note(path)
            note.parent.mkdir(parents=True, exist_ok=True)
            write_json(note, _entry(path, state, digest.hexdigest()))
    return digest.hexdigest()


def _entry(path: Path, state: State, digest: str) -> dict[str, Any]:
    """Return what is noted: some blocks spread over the file are looked at again each time."""
    count = -(-state[0] // BLOCK)
    chosen = sorted({number * count // SAMPLE for number in range(SAMPLE)} if count else set())
    return {
        "file": os.fspath(path), "state": state, "digest": digest,
        "blocks": list(zip(chosen, block_checksums(path, chosen), strict=True)),
    }  # fmt: skip
