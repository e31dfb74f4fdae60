"""Workers of a sweep: processes on this machine, or jobs on a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from magneto.analysis.sweep.sweep import Sweep, is_done, work
from magneto.files import import_extra

# Seconds between looks at what is done.
LOOK = 0.5


def devices() -> list[str]:
    """List what workers of this machine can have to themselves: GPUs, or nothing."""
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def default_jobs() -> int:
    """Return how many workers suit this machine: one per GPU, or one per core."""
    return len(devices()) or os.cpu_count() or 1


def run_local(folder: Path, sweep: Sweep, jobs: int, progress: Callable[[int, int], None]) -> bool:
    """Run a sweep with worker processes; return whether every cell is done.

    None is started where every cell is done. Ctrl-C lets each worker save its cell before it stops.
    """
    cells = sweep.cells()
    if all(is_done(folder, cell) for cell in cells):
        return True
    gpus = devices()
    threads = str(max(1, (os.cpu_count() or 1) // max(jobs, 1)))
    commands = [
        [sys.executable, "-m", "magneto.analysis.sweep.workers", str(folder)]
        + ([gpus[number % len(gpus)]] if gpus else [])
        for number in range(jobs)
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        while any(process.poll() is None for process in processes):
            progress(sum(is_done(folder, cell) for cell in cells), len(cells))
            time.sleep(LOOK)
    except KeyboardInterrupt:
        for process in processes:
            process.wait()  # the terminal has sent them the signal too
        raise
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
    done = sum(is_done(folder, cell) for cell in cells)
    progress(done, len(cells))
    return done == len(cells)


def run_cluster(folder: Path, jobs: int, cluster: str, options: dict[str, Any]) -> list[Any]:
    """Start workers through submitit and return its jobs; call `result()` on each to wait.

    Args:
        folder: Of the sweep, seen by every machine of the cluster.
        jobs: Workers.
        cluster: "slurm", or "local" for processes on this machine.
        options: For submitit's executor: slurm_partition, timeout_min, gpus_per_node.

    Raises:
        ModuleNotFoundError: If submitit is not installed; names the extra.
    """
    submitit = import_extra("submitit", "cluster", "a cluster needs submitit")
    executor = submitit.AutoExecutor(folder=folder / "jobs", cluster=cluster)
    executor.update_parameters(name="magneto-compare", **options)
    return [executor.submit(work, folder.resolve()) for _ in range(jobs)]


def main(words: list[str]) -> None:
    """Be a worker: folder, and a device if given one."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    work(Path(words[0]), *words[1:2])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
