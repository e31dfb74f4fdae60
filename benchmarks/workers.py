"""What worker processes give and cost: `training.num_workers` at 0, 1 and 2.

    python -m benchmarks.workers --out benchmarks/results

Three things: how fast batches come whose making takes 20 ms of processor time (numbered examples,
and streaming text, which every worker tokenises whole), alone and beside a step that takes 20 ms
itself; how long a batch of images takes to pass from a worker; how long workers take to start.
Turns are interleaved, so a machine that is busy with other things slows all alike.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.training_step import write_result
from magneto.data.batching import ShuffledExamples, StreamedWindows
from magneto.training.environment import environment
from magneto.training.prefetch import Prefetch

COUNTS = (0, 1, 2)
COST = 0.020
BATCH = 32
# Of the batch that is passed: 32 images of 224 x 224, 19 MB.
IMAGES = (BATCH, 3, 224, 224)


def work(seconds: float) -> None:
    """Use so much processor time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


def examples() -> ShuffledExamples:
    """Return numbered examples, whose batches take `COST` to make."""

    def make(numbers: np.ndarray) -> torch.Tensor:
        work(COST)
        return torch.from_numpy(numbers)

    return ShuffledExamples(1000, BATCH, 1, make)


def text() -> StreamedWindows:
    """Return streaming text, whose batches take `COST` to tokenise."""

    def encode(texts: list[str]) -> np.ndarray:
        work(COST)
        return np.zeros(64 * len(texts), np.int64)

    return StreamedWindows(lambda: repeat("text"), encode, 64, BATCH, BATCH, 1)


def images() -> ShuffledExamples:
    """Return batches that cost little to make and are large."""
    batch = torch.rand(IMAGES)
    return ShuffledExamples(1000, BATCH, 1, lambda numbers: batch.clone())


def turn(stream: Any, num_workers: int, batches: int, step: float) -> dict[str, float]:
    """Take batches, with a step of so many seconds after each; return seconds for each batch."""
    before = processor_time()
    with closing(Prefetch(stream, 1, [0], num_workers=num_workers)) as prefetch:
        taken = iter(prefetch)
        next(taken)
        began = time.perf_counter()
        for _ in range(batches):
            next(taken)
            work(step)
        took = time.perf_counter() - began
    used = processor_time() - before
    return {"seconds": took / batches, "processor_seconds": used / batches}


def processor_time() -> float:
    """Return the processor seconds of this process and the ended workers."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def start_up(num_workers: int) -> dict[str, float]:
    """Start workers; return seconds per worker until started, and until the first batch came."""
    stream = ShuffledExamples(1000, BATCH, 1, torch.from_numpy)
    with closing(Prefetch(stream, 1, [0], num_workers=num_workers)) as prefetch:
        began = time.perf_counter()
        batches: Iterator[Any] = prefetch.makers.start(0)
        started = time.perf_counter() - began
        for _ in range(num_workers):
            next(batches)
        came = time.perf_counter() - began
    return {"started": started / num_workers, "first_batches": came / num_workers}


CASES = {
    "examples": (examples, 0.0),
    "examples, beside a step of 20 ms": (examples, COST),
    "streaming text": (text, 0.0),
    "images, 19 MB a batch, nothing to make": (images, 0.0),
}


def measure(rounds: int, batches: int) -> list[dict[str, Any]]:
    """Measure each case with each number of workers, turn by turn."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for name, (stream, step) in CASES.items():
            for count in COUNTS:
                found.setdefault((name, count), []).append(turn(stream(), count, batches, step))
    return [
        {"case": name, "num_workers": count, "turns": len(turns)}
        | {key: median(turn[key] for turn in turns) for key in turns[0]}
        for (name, count), turns in found.items()
    ]


def measure_start(rounds: int, gibibytes: float) -> dict[str, Any]:
    """Measure starting two workers from a process that holds so much memory."""
    held = torch.ones(int(gibibytes * 2**30), dtype=torch.uint8)
    turns = [start_up(2) for _ in range(rounds)]
    medians = {key: median(turn[key] for turn in turns) for key in turns[0]}
    return {"gibibytes": held.numel() / 2**30, "turns": rounds, **medians}


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with tables."""
    where = result["machine"]
    lines = [
        "# Batches from worker processes",
        "",
        f"{where['processor']}, {where['cores']} cores; torch {where['packages']['torch']}; "
        f"commit {where['commit']}; {result['date']}. Medians.",
        "",
        f"Processes that wanted a core, on average over a minute (load): {result['load'][0]:.1f} "
        f"at the start and {result['load'][1]:.1f} at the end; turns are interleaved.",
        "",
        "Making a batch of examples, or tokenising one of text, takes 20 ms of processor time. "
        "Processor time counts batches made ahead and never taken. "
        "Where the load is above the number of cores, batches/s say nothing about more workers.",
        "",
        "| case | workers | turns | batches/s | ms a batch | processor ms a batch |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['case']} | {row['num_workers']} | {row['turns']} | {1 / row['seconds']:.1f} "
            f"| {1e3 * row['seconds']:.1f} | {1e3 * row['processor_seconds']:.1f} |"
        )
    lines += [
        "",
        "| memory of the main process | turns | ms to start a worker | ms until its first batch |",
        "|---|--:|--:|--:|",
    ]
    for row in result["start"]:
        lines.append(
            f"| {row['gibibytes']:g} GiB more than torch | {row['turns']} | "
            f"{1e3 * row['started']:.1f} | {1e3 * row['first_batches']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=60, help="of a turn")
    parser.add_argument("--memory", type=float, nargs="+", default=[0.0, 4.0], help="GiB")
    parser.add_argument("--name", default="workers-cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rows = measure(args.rounds, args.batches)
    start = [measure_start(args.rounds, gibibytes) for gibibytes in args.memory]
    where = environment()
    del where["command"]
    result = {
        "name": args.name, "rows": rows, "start": start, "machine": where,
        "load": [load, os.getloadavg()[0]], "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    write_result(result, markdown(result), args.out)


if __name__ == "__main__":
    main()
