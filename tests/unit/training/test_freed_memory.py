"""Freed memory stays while training, and goes back at the end."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from magneto.training.distributed import glibc, keep_freed_memory

CPU = torch.device("cpu")
BLOCK = 128 << 20


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def grown_by_a_block(before: int) -> float:
    """How much more there is after a block was made and freed, as a share of it."""
    torch.ones(BLOCK // 4)
    return (resident() - before) / BLOCK


@pytest.mark.skipif(glibc() is None, reason="needs glibc")
def test_a_freed_block_stays_until_the_end() -> None:
    """In a process of its own: another's heap may have room for the block."""
    words = "from tests.unit.training.test_freed_memory import measure; measure()"
    done = subprocess.run([sys.executable, "-c", words], cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 0


def measure() -> None:
    """Fail unless a block stays within the context, and only there."""
    torch.ones(1)
    before = resident()
    assert grown_by_a_block(before) < 0.2
    with keep_freed_memory(CPU, {}) as done:
        assert done
        assert grown_by_a_block(before) > 0.8
    assert (resident() - before) / BLOCK < 0.2


@pytest.mark.parametrize(
    ("device", "environment"),
    [("cuda", {}), ("cpu", {"MALLOC_TRIM_THRESHOLD_": "1"}), ("cpu", {"GLIBC_TUNABLES": ""})],
)
def test_nothing_is_done_where_it_is_not_wanted(device: str, environment: dict) -> None:
    with keep_freed_memory(torch.device(device), environment) as done:
        assert not done
