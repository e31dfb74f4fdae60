"""Ranks of a test: processes that begin with torch and this package imported, by a fork.

Python, torch and the package take seconds to load in each process; a fork of one that has them
begins at once. What torchrun itself does (it starts lost workers again) is tested by torchrun.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import torch
from torch.distributed import TCPStore

ROOT = Path(__file__).parents[1]
# What is not installed is left out.
LOADED = (
    "pytest", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor",
    "torch.utils.flop_counter", "sklearn.datasets", "PIL.Image", "tokenizers",
    "magneto.commands.train", "magneto.training.loop", "magneto.training.distributed",
    "magneto.translation.task", "magneto.vision.tokenizer",
    "magneto.vision_language.retrieval",
)  # fmt: skip
TIMEOUT = 240.0  # seconds, on a busy machine


@functools.cache
def forks() -> ForkServerContext:
    """Return where processes are forked from one that has loaded all and computed nothing."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(list(LOADED))
    return made


def start(words: Sequence[str], environment: Mapping[str, str], output: Path) -> ForkServerProcess:
    """Start what `python WORDS` would do: a script's path or "-m" and a module, and arguments.

    Args:
        words: As they are typed after python.
        environment: All of it.
        output: Where what it says is added.
    """
    given = (list(words), dict(environment), str(output), str(ROOT))
    process = forks().Process(target=_be, args=given)
    process.start()
    return process


def _be(words: list[str], environment: dict[str, str], output: str, folder: str) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def run_alone(*words: str, **environment: str) -> str:
    """Run what `python WORDS` would do; return what it said.

    Raises:
        RuntimeError: If it fails, with what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        process = start(words, os.environ | environment, output)
        return _join([process], output, words)


def run_ranks(count: int, *words: str, **environment: str) -> str:
    """Run what `torchrun --standalone --nproc-per-node COUNT WORDS` would; return what all said.

    Raises:
        RuntimeError: If a rank fails, with what all said; the others are then ended.
    """
    # As torchrun does: the ranks find each other by a store that is not theirs.
    store = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT)
    )
    shared = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": "0",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        processes = [
            start(words, {**os.environ, **shared, **environment, **numbers}, output)
            for numbers in ({"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(count))
        ]
        return _join(processes, output, words)


def _join(processes: list[ForkServerProcess], output: Path, words: Sequence[str]) -> str:
    """Wait until all have ended, one has failed, or none has ended for too long."""
    living = list(processes)
    try:
        while living:
            ended = wait([process.sentinel for process in living], TIMEOUT)
            if not ended or any(process.exitcode for process in processes):
                codes = [process.exitcode for process in processes]
                lines = output.read_text(errors="replace") if output.exists() else ""
                raise RuntimeError(f"{' '.join(words)}: ended with {codes}\n{lines}")
            living = [process for process in living if process.exitcode is None]
        return output.read_text(errors="replace")
    finally:
        for process in processes:
            process.kill()
            process.join()
