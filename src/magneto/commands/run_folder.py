"""The folder that `magneto train` trains in: a new run's, or one to go on with; held by a lease."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from magneto.files import is_aside
from magneto.lease import STALE, Lease, acquire_lease, alive_here, holder, newest_lease
from magneto.progress import Progress
from magneto.recipe import RUN_FILE, Recipe

# Seconds between looks at a folder that another machine holds.
LOOK = 1.0


def is_main_process() -> bool:
    """Return whether this process is the one that writes and talks."""
    return os.environ.get("RANK", "0") == "0"


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, however far it came."""
    return (folder / RUN_FILE).is_file()


@contextmanager
def held(run: Path, progress: Progress, *, new: bool, patient: bool) -> Iterator[Lease | None]:
    """Hold a run's directory while it is trained, so that no other process writes there.

    The main process holds it for all ranks; the others get None.

    Args:
        run: The directory.
        progress: Told what is waited for.
        new: Whether a new run goes there.
        patient: Whether to wait for the lease of another machine to go stale: a job whose machine
            was lost begins again elsewhere within a minute.

    Raises:
        FileExistsError: If another process holds it, or a new run would go into another's place.
    """
    if not is_main_process():
        yield None
        return
    if new and newest_lease(run) is None:
        refuse_taken(run)  # a folder that is no run's stays untouched
    made = not run.exists()
    lease = lease_of(run, progress, patient)
    try:
        if new:
            refuse_taken(run)
        yield lease
    finally:
        lease.release()
        if made:
            with suppress(OSError):
                run.rmdir()  # which is so only where nothing was written: it never began


def lease_of(run: Path, progress: Progress, patient: bool) -> Lease:
    """Return a lease on a run's directory.

    Raises:
        FileExistsError: If another process holds it.
    """
    lease = None if living(run) else acquire_lease(run)
    patience = time.monotonic() + STALE + LOOK
    if lease is None and patient and not living(run):
        progress.say(
            f"{run} was trained by {holder(run)}, which may be gone: waiting up to a minute for a "
            "sign of it"
        )
        while lease is None and time.monotonic() < patience:
            time.sleep(LOOK)
            lease = acquire_lease(run)
    if lease is None:
        raise FileExistsError(
            f"{run} is being trained by {holder(run)}: wait for it, stop it, or train in another "
            "directory (--out)"
        )
    return lease


def living(run: Path) -> bool:
    """Return whether a process of this machine holds a run, even if it sleeps."""
    lease = newest_lease(run)
    return lease is not None and alive_here(lease)


def new_directory(out: Path | None, recipe: Recipe) -> Path:
    """Return where a new run goes."""
    if out is not None:
        return out
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = Path(recipe.name).stem if "." in recipe.name else recipe.name
    return Path("runs") / f"{name}-{stamp}"


def refuse_taken(out: Path) -> None:
    """Raise FileExistsError if something is in a new run's place.

    What a start that was killed leaves (a lease, files aside) is nothing.
    """
    if out.is_dir():
        found = [p for p in out.iterdir() if not p.match("lease-*") and not is_aside(p)]
    else:
        found = [out] if out.exists() else []
    if found:
        hint = f"; go on with it: magneto train --resume {out}" if (out / RUN_FILE).exists() else ""
        raise FileExistsError(f"{out} is there already and not empty{hint}")
