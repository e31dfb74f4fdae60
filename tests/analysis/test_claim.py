"""Claims: one owner at a time, the dead make way, the living do not."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from magneto.analysis.claim import newest_claim, owner, try_claim


def test_one_of_many_gets_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        claims = [c for c in pool.map(lambda _: try_claim(tmp_path), range(64)) if c]
    assert len(claims) == 1 and not claims[0].lost
    claims[0].give_up()
    again = try_claim(tmp_path)
    assert again is not None
    again.give_up()
    assert newest_claim(tmp_path) is None


def test_the_living_keep_it_and_the_stale_lose_it_to_one(tmp_path: Path) -> None:
    first = try_claim(tmp_path)
    assert first is not None and try_claim(tmp_path) is None
    past = time.time() - 1000
    first._stop.set()
    first._thread.join()
    os.utime(first.path, (past, past))
    with ThreadPoolExecutor(16) as pool:
        claims = [c for c in pool.map(lambda _: try_claim(tmp_path), range(64)) if c]
    assert len(claims) == 1 and first.lost and not claims[0].lost
    claims[0].give_up()


def test_a_dead_process_of_this_machine_makes_way_at_once(tmp_path: Path) -> None:
    host, _, _ = owner().split(" ")
    (tmp_path / "claim-000000").write_text(f"{host} {2**22 + 1} 12345")
    claim = try_claim(tmp_path)
    assert claim is not None
    claim.give_up()
    (tmp_path / "claim-000000").write_text("another-machine 17 12345")
    os.utime(tmp_path / "claim-000000")
    assert try_claim(tmp_path) is None
