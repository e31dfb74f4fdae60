"""A second copy of a run's newest checkpoint elsewhere: on another disk, or in an object store.

A mirror holds snapshots, `step-00000500/`: a checkpoint and all else that a run needs to go on, by
their paths in the run's folder. A snapshot's manifest is written last, so what a copy that broke
off has left is never taken for one. Paths and URLs go through fsspec, which torch depends on; for
an object store it needs a package of its own (s3fs for s3://, gcsfs for gs://).
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from magneto.files import MANIFEST, Damaged, aside_path, import_extra, is_aside
from magneto.progress import SILENT, Progress
from magneto.weights import STEP

# Of a run's folder: what belongs to its end, or to the process that trains it.
LEFT_OUT = ("checkpoints", "final", "averaged", "diverged", "result.json")
BLOCK = 1 << 22


class Mirror:
    """Copies a run's newest checkpoint to a second place on a thread; the main process has one.

    A copy that fails is said, and ends nothing: the next checkpoint is copied anew.

    Args:
        place: A folder, or a URL that fsspec knows.
        run: The run's directory.
        say: Told what failed.

    Raises:
        ModuleNotFoundError: If a package for such URLs is missing; says which.
        ValueError: If nothing knows such URLs, or the place is in the run's directory.
    """

    def __init__(self, place: str, run: Path, say: Callable[[str], None]) -> None:
        self.place, self.run, self.say = place, run, say
        self.files, self.root = open_place(place)
        if Path(self.root).is_relative_to(run.resolve()):
            raise ValueError(f"training.mirror: {place} lies in the run's own folder")
        self._lock = Lock()
        self._next: Path | None = None
        self._thread: Thread | None = None

    def send(self, checkpoint: Path) -> None:
        """Copy a checkpoint that is complete; one that still waits for its turn gives way to it.

        The files are linked aside first, so that the run may replace and remove them meanwhile.
        """
        try:
            linked = link_snapshot(self.run, checkpoint)
        except OSError as error:
            self._failed(checkpoint.name, error)
            return
        with self._lock:
            waiting, self._next = self._next, linked
            if self._thread is None:
                self._thread = Thread(target=self._work, daemon=True)
                self._thread.start()
        if waiting is not None:
            shutil.rmtree(waiting, ignore_errors=True)

    def wait(self) -> None:
        """Wait until the newest checkpoint is copied, or has failed to be."""
        thread = self._thread
        if thread is not None:
            self.say(f"waiting for the copy of the newest checkpoint to {self.place}")
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                linked, self._next = self._next, None
                if linked is None:
                    self._thread = None
                    return
            name = linked.name.split(".")[1]
            try:
                self._copy(linked, name)
            except Exception as error:  # whatever a network may do: the run goes on
                self._failed(name, error)
            finally:
                shutil.rmtree(linked, ignore_errors=True)

    def _copy(self, linked: Path, name: str) -> None:
        place = f"{self.root}/{name}"
        if self.files.exists(place):
            self.files.rm(place, recursive=True)
        manifest = {}
        for path in sorted(path for path in linked.rglob("*") if path.is_file()):
            relative = path.relative_to(linked).as_posix()
            self.files.makedirs(f"{place}/{relative}".rpartition("/")[0], exist_ok=True)
            with path.open("rb") as source, self.files.open(f"{place}/{relative}", "wb") as target:
                manifest[relative] = copy_blocks(source, target)
                with suppress(OSError, ValueError):  # no file of a disk
                    target.flush()
                    os.fsync(target.fileno())
        with self.files.open(f"{place}/{MANIFEST}", "wb") as target:
            target.write(json.dumps(manifest, indent=1).encode())
        for other in steps_in(self.files, self.root):
            if other != name:
                self.files.rm(f"{self.root}/{other}", recursive=True)

    def _failed(self, name: str, error: Exception) -> None:
        why = "; ".join(str(error).splitlines()) or type(error).__name__
        self.say(
            f"{name} was not copied to {self.place}: {why}; the next checkpoint is tried again"
        )


@dataclass(frozen=True)
class Snapshot:
    """What a mirror holds of a run, complete.

    Attributes:
        place: The mirror, as it was named.
        name: Of the checkpoint.
        manifest: Size and checksum of each file, by its path in the run's folder.
    """

    place: str
    name: str
    manifest: dict[str, dict[str, int]]

    def copy_to(self, run: Path, last: str, progress: Progress) -> None:
        """Copy everything back into a run's folder, which has none of it.

        Args:
            run: The folder.
            last: The file that makes it a run, which comes when all others are there.
            progress: Shows it.

        Raises:
            Damaged: If a file is not as it was written; the folder stays as it was.
            OSError: If one can't be read or written.
        """
        aside = aside_path(run / "copied")
        shutil.rmtree(aside, ignore_errors=True)
        try:
            self.fetch(sorted(self.manifest), aside, progress)
            order = sorted(aside.iterdir(), key=lambda path: path.name == last)
            for path in order:
                path.rename(run / path.name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def fetch(self, names: list[str], folder: Path, progress: Progress = SILENT) -> None:
        """Copy some files into a folder.

        Raises:
            Damaged: If one is not as it was written.
            OSError: If one is not there, or can't be read or written.
        """
        files, root = open_place(self.place)
        for number, name in enumerate(names, 1):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.open(f"{root}/{self.name}/{name}", "rb") as source, path.open("wb") as file:
                found = copy_blocks(source, file)
            if found != self.manifest[name]:
                raise Damaged(f"{self.place}/{self.name}/{name} is not as it was written")
            progress.update(f"copying files from {self.place}", number, len(names))


def newest_snapshot(place: str) -> Snapshot | None:
    """Return the newest complete snapshot of a mirror, or None if it has none.

    Raises:
        ModuleNotFoundError: If a package for such URLs is missing.
        OSError: If the place can't be read.
        ValueError: If nothing knows such URLs.
    """
    files, root = open_place(place)
    try:
        for name in reversed(steps_in(files, root)):
            if files.exists(f"{root}/{name}/{MANIFEST}"):
                with suppress(ValueError, TypeError):  # its last file, cut off
                    found = json.loads(files.cat_file(f"{root}/{name}/{MANIFEST}"))
                    return Snapshot(place, name, dict(found))
    except Exception as error:  # each object store has errors of its own
        raise OSError(f"{place} can't be read: {error}") from error
    return None


def open_place(place: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it.

    Raises:
        ModuleNotFoundError: If a package for such URLs is missing; says which.
        ValueError: If nothing knows such URLs.
    """
    core = import_extra("fsspec.core", "s3", "a mirror needs fsspec")
    try:
        files, root = core.url_to_fs(place, use_listings_cache=False)
    except ImportError as error:
        raise ModuleNotFoundError(f"{place}: {error}", name=error.name) from error
    except ValueError as error:
        raise ValueError(f"{place} is no path and no URL of a store: {error}") from error
    return files, root.rstrip("/")


def steps_in(files: Any, root: str) -> list[str]:
    """Return the names of a mirror's snapshots, complete or not, the earliest first."""
    if not files.exists(root):
        return []
    names = {path.rstrip("/").rpartition("/")[2] for path in files.ls(root, detail=False)}
    return sorted(name for name in names if STEP.fullmatch(name))


def link_snapshot(run: Path, checkpoint: Path) -> Path:
    """Link what a run needs to go on from a checkpoint into a folder aside; return the folder.

    A file system without hard links copies.
    """
    aside = aside_path(run / f"{checkpoint.name}.{time.time_ns()}")
    shutil.rmtree(aside, ignore_errors=True)
    for path in (*files_of(run), *(path for path in checkpoint.rglob("*") if path.is_file())):
        target = aside / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except OSError:
            shutil.copy2(path, target)
    return aside


def files_of(run: Path) -> Iterator[Path]:
    """Yield what a run needs to go on, besides a checkpoint: recipe, records, artifacts, best."""
    for top in sorted(run.iterdir()):
        if top.name in LEFT_OUT or top.name.startswith("lease-") or is_aside(top):
            continue
        yield from (path for path in (top, *top.rglob("*")) if path.is_file())


def copy_blocks(source: Any, target: Any) -> dict[str, int]:
    """Copy an open file to another; return size and checksum of what was copied."""
    checksum = size = 0
    while block := source.read(BLOCK):
        target.write(block)
        checksum, size = zlib.crc32(block, checksum), size + len(block)
    return {"bytes": size, "crc32": checksum}
