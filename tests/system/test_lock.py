"""Locks: one holder at a time, the dead make way at once, the stopped do not."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from magneto.files import acquire_lock, lock_holder

# Holds the lock, has a forked worker as training may have, and says when both are there.
HOLDER = """
import os, sys, time
from pathlib import Path
from magneto.files import acquire_lock
lock = acquire_lock(Path(sys.argv[1]))
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def hold(tmp_path: Path):
    """Return a function that starts a process that holds a lock on `tmp_path`."""
    ids = []

    def start() -> subprocess.Popen:
        words = [sys.executable, "-c", HOLDER, str(tmp_path)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        ids.extend([process.pid, int(process.stdout.readline())])
        return process

    yield start
    for number in ids:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def test_one_of_many_gets_it_and_the_next_when_it_is_free(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = [lock for lock in pool.map(acquire_lock, [tmp_path / "run"] * 64) if lock]
    assert len(found) == 1
    assert lock_holder(tmp_path) == "another process", "whose name can't be read"
    (tmp_path / ".lock").write_text("")  # taken this moment
    assert lock_holder(tmp_path) == "another process"
    assert lock_holder(tmp_path / "run") == f"process {os.getpid()} on {socket.gethostname()}"
    found[0].release()
    again = acquire_lock(tmp_path / "run")
    assert again is not None
    again.release()


def test_a_killed_holder_makes_way_at_once_and_a_stopped_one_is_waited_for(
    tmp_path: Path, hold: Callable[[], subprocess.Popen]
) -> None:
    """Also where a worker that it forked lives on."""
    process = hold()
    assert acquire_lock(tmp_path) is None
    assert lock_holder(tmp_path) == f"process {process.pid} on {socket.gethostname()}"
    process.kill()
    process.wait()
    lock = acquire_lock(tmp_path)
    assert lock is not None
    lock.release()
    process = hold()
    process.send_signal(signal.SIGSTOP)
    assert acquire_lock(tmp_path, patience=0.1) is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acquire_lock, tmp_path, 60.0)
        process.kill()
        lock = waiting.result()
    assert lock is not None
    lock.release()
