"""Files known by their content: hashed once, and again only where they may have changed.

What was hashed is noted in the cache, a note for each folder, with a file's size, times and number
on the disk. Where all of them agree, and some blocks of the content do, the note is believed. Every
change through a local file system alters one of them: the time at which a file's entry last changed
can't be set. However many files there are, only some blocks are read when nothing changed.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from magneto.data.cache import cache_directory, fingerprint
from magneto.data.checksums import BLOCK, SAMPLE, block_checksums, file_state
from magneto.files import Damaged, read_object, write_json
from magneto.progress import SILENT, Progress

# A file that changed within so many nanoseconds before it was hashed may change again without its
# times showing it: file systems count time in ticks.
TICK = 2_000_000_000
# It is waiting for the disk that takes long. Files are hashed so many at a time.
THREADS = 8
GROUP = 64

Note = dict[str, Any]
"""Of a file: "state", "digest", and "blocks", pairs of a block's number and checksum."""


def file_contents(files: Iterable[Path], progress: Progress = SILENT) -> list[tuple[str, int, str]]:
    """Return name, size and digest of files; not where they lie, nor when they were written.

    Raises:
        OSError: If one can't be read.
    """
    paths = list(files)
    folders = {folder: folder.resolve() for folder in {path.parent for path in paths}}
    places = {path: folders[path.parent] / path.name for path in paths}
    kept = {folder: _read_notes(folder) for folder in folders.values()}
    blocks = _sampled(list(places))
    stale = [
        path for path, place in places.items()
        if not _unchanged(path, kept[place.parent].get(place.name), blocks.get(path, 0))
    ]  # fmt: skip
    found: dict[Path, Note] = {}
    for path, (note, lasting) in zip(stale, _hash_all(stale, progress), strict=True):
        found[path] = note
        if lasting:
            kept[places[path].parent][places[path].name] = note
    for folder in {places[path].parent for path in stale}:
        _write_notes(folder, kept[folder])
    for path in places.keys() - found.keys():
        found[path] = kept[places[path].parent][places[path].name]
    return [(path.name, found[path]["state"][0], found[path]["digest"]) for path in paths]


def _sampled(paths: Sequence[Path]) -> dict[Path, int]:
    """Return of how many blocks each file is looked at; of many files only some are."""
    if len(paths) > SAMPLE:
        return dict.fromkeys(random.sample(paths, SAMPLE), 1)
    return dict.fromkeys(paths, SAMPLE // max(len(paths), 1))


def _notes_file(folder: Path) -> Path:
    """Return where the digests of the files of a folder are noted."""
    return cache_directory() / "contents" / f"{fingerprint(str(folder))}.json"


def _read_notes(folder: Path) -> dict[str, Note]:
    """Return what was noted of the files of a folder, by name."""
    try:
        files = read_object(_notes_file(folder), "files")["files"]
    except (OSError, Damaged):
        return {}
    return files if isinstance(files, dict) else {}


def _write_notes(folder: Path, notes: Mapping[str, Note]) -> None:
    """Note digests beside those that other processes have noted meanwhile."""
    file = _notes_file(folder)
    with suppress(OSError):  # a cache that can only be read
        file.parent.mkdir(parents=True, exist_ok=True)
        both = {**_read_notes(folder), **notes}
        write_json(file, {"folder": os.fspath(folder), "files": both})


def _unchanged(path: Path, note: Note | None, blocks: int) -> bool:
    """Return whether a file is the one that was noted, by so many of its blocks too."""
    try:
        if note is None or note["state"] != file_state(path):
            return False
        known = dict(random.sample(note["blocks"], min(blocks, len(note["blocks"]))))
        same = not known or block_checksums(path, list(known)) == list(known.values())
        return same and isinstance(note["digest"], str)
    except (KeyError, TypeError, ValueError):
        return False


def _hash_all(paths: Sequence[Path], progress: Progress) -> list[tuple[Note, bool]]:
    """Hash files, several at a time; see `_hashed`."""
    if len(paths) == 1:
        return [_hashed(paths[0], progress)]
    found: list[tuple[Note, bool]] = []
    with ThreadPoolExecutor(THREADS) as threads:
        for start in range(0, len(paths), GROUP):
            found += threads.map(lambda path: _hashed(path, SILENT), paths[start : start + GROUP])
            progress.update("reading files", len(found), len(paths))
    return found


def _hashed(path: Path, progress: Progress) -> tuple[Note, bool]:
    """Hash a whole file.

    Returns:
        What to note of it, and whether that lasts: not where it changed meanwhile or a moment ago.
    """
    before, began = file_state(path), time.time_ns()
    digest, done = hashlib.blake2b(digest_size=20), 0
    with path.open("rb") as file:
        while block := file.read(16 * BLOCK):
            digest.update(block)
            done += len(block)
            if before[0] > 64 * BLOCK:
                progress.update(f"reading {path.name}, MB", done >> 20, before[0] >> 20)
    state = file_state(path)
    count = -(-state[0] // BLOCK)
    chosen = sorted({number * count // SAMPLE for number in range(SAMPLE)} if count else set())
    note = {
        "state": state, "digest": digest.hexdigest(),
        "blocks": list(zip(chosen, block_checksums(path, chosen), strict=True)),
    }  # fmt: skip
    return note, state == before and began - max(state[1:3]) > TICK
