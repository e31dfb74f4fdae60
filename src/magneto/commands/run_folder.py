"""The folder that `magneto train` trains in: a new run's, or one to go on with; locked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock

from magneto.files import is_aside
from magneto.lock import LOCK_FILE, acquire_lock, holder
from magneto.progress import Progress
from magneto.recipe import RUN_FILE, Recipe

# Seconds for which a file server may take a lost machine for one that is alive.
PATIENCE = 120.0


def is_main_process() -> bool:
    """Return whether this process is the one that writes and talks."""
    return os.environ.get("RANK", "0") == "0"


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, however far it came."""
    return (folder / RUN_FILE).is_file()


@contextmanager
def held(run: Path, progress: Progress, *, new: bool, patient: bool) -> Iterator[None]:
    """Hold a run's directory while it is trained, so that no other process writes there.

    The main process holds it for all ranks.

    Args:
        run: The directory.
        progress: Told what is waited for.
        new: Whether a new run goes there.
        patient: Whether to wait two minutes for it: a job that is started again may come before
            the process before it has ended, or its lost machine is known to be lost.

    Raises:
        FileExistsError: If another process holds it, or a new run would go into another's place.
    """
    if not is_main_process():
        yield
        return
    if new and not (run / LOCK_FILE).exists():
        refuse_taken(run)  # a folder that is no run's stays untouched
    made = not run.exists()
    lock = lock_of(run, progress, patient)
    try:
        if new:
            refuse_taken(run)
        yield
    finally:
        if made and [path.name for path in run.glob("*")] == [LOCK_FILE]:  # it never began
            (run / LOCK_FILE).unlink()
            with suppress(OSError):
                run.rmdir()
        lock.release()


def lock_of(run: Path, progress: Progress, patient: bool) -> FileLock:
    """Return the lock on a run's directory; whoever calls this releases it.

    Raises:
        FileExistsError: If another process holds it.
    """
    lock = acquire_lock(run)
    if lock is None and patient:
        progress.say(f"{run} is held by {holder(run)}: waiting up to two minutes for its end")
        lock = acquire_lock(run, PATIENCE)
    if lock is None:
        raise FileExistsError(
            f"{run} is being trained by {holder(run)}: wait for it, stop it, or train in another "
            "directory (--out)"
        )
    return lock


def new_directory(out: Path | None, recipe: Recipe) -> Path:
    """Return where a new run goes."""
    if out is not None:
        return out
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = Path(recipe.name).stem if "." in recipe.name else recipe.name
    return Path("runs") / f"{name}-{stamp}"


def refuse_taken(out: Path) -> None:
    """Raise FileExistsError if something is in a new run's place.

    What a start that was killed leaves (its lock's file, files aside) is nothing.
    """
    if out.is_dir():
        found = [p for p in out.iterdir() if p.name != LOCK_FILE and not is_aside(p)]
    else:
        found = [out] if out.exists() else []
    if found:
        hint = f"; go on with it: magneto train --resume {out}" if (out / RUN_FILE).exists() else ""
        raise FileExistsError(f"{out} is there already and not empty{hint}")
