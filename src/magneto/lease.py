"""Leases on pieces of work in a shared folder, so that no two processes or machines do the same.

A lease is a numbered file, created exclusively, whose time is renewed while its owner lives. Where
the newest one has gone stale, its owner is taken for dead, and the piece is leased by creating the
next number: that too only one can do. An owner that finds a higher number than its own has lost.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

# Seconds between renewals, and after which a lease is stale: many renewals missed.
RENEW = 5.0
STALE = 60.0


class Lease:
    """A lease on a directory, renewed on a thread until it is given up."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self._stop = Event()
        self._thread = Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._stop.wait(RENEW):
            with suppress(OSError):  # gone with its folder, or a moment of a shared disk's
                if not self.lost:
                    os.utime(self.path)

    @property
    def lost(self) -> bool:
        """True if somebody took this owner for dead and leased the directory, even if in the past.

        Numbers begin again when the directory was free, so the file's text says whose it is.
        """
        try:
            newest = newest_lease(self.path.parent)
            return newest != self.path or self.path.read_text() != self.text
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Stop renewing, and free the directory."""
        self._stop.set()
        self._thread.join()
        if self.lost:
            return
        # Those taken over go first: an owner that wakes up must not find its own to be the newest.
        # A newer one is of somebody who has just taken over.
        for path in sorted(self.path.parent.glob("lease-*")):
            if path.name <= self.path.name:
                path.unlink(missing_ok=True)


def newest_lease(directory: Path) -> Path | None:
    """Return the lease file of the highest number, if there is one."""
    return max(directory.glob("lease-*"), default=None)


def acquire_lease(directory: Path, stale: float = STALE) -> Lease | None:
    """Lease a directory, or return None if a living owner has it."""
    directory.mkdir(parents=True, exist_ok=True)
    held = newest_lease(directory)
    number = 0
    if held is not None:
        try:
            age = time.time() - held.stat().st_mtime
        except FileNotFoundError:
            return None  # given up this moment; the next round will see
        if age < stale and not dead_here(held):
            return None
        number = int(held.name.split("-")[1]) + 1
    path = directory / f"lease-{number:06d}"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return None
    text = owner()
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return Lease(path, text)


def holder(directory: Path) -> str:
    """Say in words who holds a directory's newest lease."""
    held = newest_lease(directory)
    try:
        host, process, _ = held.read_text().split(" ") if held else ("", "", "")
    except (OSError, ValueError):
        host = process = ""
    return f"process {process} on {host}" if host else "another process"


def owner() -> str:
    """Name this process: machine, number, and when it started, since numbers are used again."""
    return f"{socket.gethostname()} {os.getpid()} {started(os.getpid())}"


def started(process: int) -> str:
    """Return the start time of a process in clock ticks, or "" where that can't be known.

    One that has ended, and whose parent has not looked yet, has none.
    """
    try:
        found = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if found[0] in "ZX" else found[19]


def dead_here(lease: Path) -> bool:
    """Return whether a lease's owner was a process of this machine that is gone."""
    here, process, start = owner_of(lease)
    return here and start != "" and started(process) != start


def alive_here(lease: Path) -> bool:
    """Return whether a lease's owner is a process of this machine, perhaps a stopped one."""
    here, process, start = owner_of(lease)
    return here and start != "" and started(process) == start


def owner_of(lease: Path) -> tuple[bool, int, str]:
    """Return whether a lease's owner is of this machine, its number, and when it started."""
    try:
        host, process, start = lease.read_text().split(" ")
        return host == socket.gethostname(), int(process), start
    except (OSError, ValueError):
        return False, 0, ""
