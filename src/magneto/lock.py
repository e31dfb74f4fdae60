"""A lock on a folder: one process at a time trains there, on whatever machine sees the folder.

The kernel holds the lock and releases it when its holder ends, however that ends; a holder that is
stopped keeps it. The lock's file stays where it is and names its last holder: a file that goes
while others wait for it would let two of them in.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_FILE = ".lock"
# Seconds between looks at a lock that is waited for.
LOOK = 0.5


def acquire_lock(directory: Path, patience: float = 0.0) -> FileLock | None:
    """Lock a directory, which is made if it is not there.

    Args:
        directory: What is locked.
        patience: Seconds for which a lock that another process holds is waited for.

    Returns:
        The lock, for `release_lock`; None if another holds it.

    Raises:
        OSError: If the directory can't be made, or its file system has no locks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    # A lock made of a file alone, filelock's substitute, would outlive a holder that was killed.
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience, poll_interval=LOOK)
    except Timeout:
        return None
    path.write_text(f"{os.getpid()} {socket.gethostname()}", encoding="utf-8")
    return lock


def holder(directory: Path) -> str:
    """Say in words who holds a directory's lock, or held it last."""
    try:
        process, host = (directory / LOCK_FILE).read_text(encoding="utf-8").split(" ")
    except (OSError, ValueError):
        return "another process"
    return f"process {process} on {host}"
