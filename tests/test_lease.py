"""Leases: one owner at a time, the dead make way, the living do not."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from magneto.lease import acquire_lease, alive_here, holder, newest_lease, owner, started


def test_one_of_many_gets_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        leases = [c for c in pool.map(lambda _: acquire_lease(tmp_path), range(64)) if c]
    assert len(leases) == 1 and not leases[0].lost
    leases[0].release()
    again = acquire_lease(tmp_path)
    assert again is not None
    again.release()
    assert newest_lease(tmp_path) is None


def test_the_living_keep_it_and_the_stale_lose_it_to_one(tmp_path: Path) -> None:
    first = acquire_lease(tmp_path)
    assert first is not None and acquire_lease(tmp_path) is None
    past = time.time() - 1000
    first._stop.set()
    first._thread.join()
    os.utime(first.path, (past, past))
    with ThreadPoolExecutor(16) as pool:
        leases = [c for c in pool.map(lambda _: acquire_lease(tmp_path), range(64)) if c]
    assert len(leases) == 1 and first.lost and not leases[0].lost
    leases[0].release()


def test_a_dead_process_of_this_machine_makes_way_at_once(tmp_path: Path) -> None:
    host, _, _ = owner().split(" ")
    (tmp_path / "lease-000000").write_text(f"{host} {2**22 + 1} 12345")
    lease = acquire_lease(tmp_path)
    assert lease is not None
    lease.release()
    (tmp_path / "lease-000000").write_text("another-machine 17 12345")
    os.utime(tmp_path / "lease-000000")
    assert acquire_lease(tmp_path) is None


def test_a_lease_outlives_the_loss_of_its_folder(tmp_path: Path, monkeypatch) -> None:
    """Its thread goes on."""
    monkeypatch.setattr("magneto.lease.RENEW", 0.01)
    lease = acquire_lease(tmp_path / "run")
    assert lease is not None
    shutil.rmtree(tmp_path / "run")
    lease._thread.join(0.2)
    assert lease._thread.is_alive() and lease.lost
    lease.release()


def test_who_holds_it_is_said(tmp_path: Path) -> None:
    assert holder(tmp_path) == "another process"
    lease = acquire_lease(tmp_path)
    assert lease is not None and alive_here(lease.path)
    assert f"process {os.getpid()} on" in holder(tmp_path)
    lease.release()


def test_a_process_that_ended_unseen_by_its_parent_is_dead(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    host, _, _ = owner().split(" ")
    (tmp_path / "lease-000000").write_text(f"{host} {process.pid} {started(process.pid)}")
    assert acquire_lease(tmp_path) is None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    lease = acquire_lease(tmp_path)
    assert lease is not None
    lease.release()
    process.communicate()


def test_a_sleeper_knows_that_it_lost_when_its_successor_is_done(tmp_path: Path) -> None:
    """Its own lease was the newest again, and it went on to write into a finished run."""
    sleeper = acquire_lease(tmp_path)
    successor = acquire_lease(tmp_path, stale=0)
    assert sleeper is not None and successor is not None and sleeper.lost and not successor.lost
    successor.release()
    assert sleeper.lost and newest_lease(tmp_path) is None
    (tmp_path / "lease-000000").write_text("another-machine 17 12345")
    assert sleeper.lost
    sleeper.release()
    assert (tmp_path / "lease-000000").exists()
