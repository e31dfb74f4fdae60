"""Leases: one owner at a time, the dead make way, the living do not."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from magneto.lease import acquire_lease, newest_lease, owner


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
