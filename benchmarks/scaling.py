r"""Growth of a training step: time, memory and start-up against sizes and ranks.

    python -m benchmarks.scaling
    python -m benchmarks.scaling --curves depth length

Each point trains Magneto's causal language model in its own process with one thread and takes the
median of some steps. Start-up is the time from the process' start to the end of its first step,
with imports. Memory is the largest allocation of torch during a step of another such process:
weights, gradients, the optimizer, activations. Slopes are least squares of the logarithms: with a
slope of 1, twice the size takes twice as long. Results go to benchmarks/results/scaling-cpu.json
and .md after each curve; curves of the same commit are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.bench_cases import Case
from benchmarks.bench_product import product_step
from benchmarks.bench_tables import scaling_markdown
from benchmarks.training_step import ROOT, earlier_result, machine, source_commit, write_result
from benchmarks.turns import timed
from magneto.progress import ProgressBars
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World, join_world

STEPS, WARMUP = 5, 1
MARK = "benchmarks: counted from here"


@dataclass(frozen=True)
class Curve:
    """A curve: one size that varies, with everything else fixed.

    Attributes:
        title: Name of the sizes.
        case: The fixed sizes.
        vary: Field of the case that varies; "ranks" for the number of processes, each with its
            own batch of the case.
        sizes: Values of that field.
        expected: Expected range of the slope of the step's time, and of its memory.
        why: Reason for these ranges.
    """

    title: str
    case: Case
    vary: str
    sizes: tuple[int, ...]
    expected: tuple[tuple[float, float], tuple[float, float]]
    why: str


def model(layers: int, width: int, heads: int, batch: int, length: int, vocabulary: int) -> Case:
    """Return the sizes of a causal language model."""
    return Case("causal-lm", layers, width, heads, batch, length, vocabulary)


CURVES = {
    "depth": Curve(
        "layers", model(6, 64, 4, 2, 64, 512), "layers", (6, 12, 24, 48, 96, 192, 384, 1000),
        ((1, 1), (1, 1)), "every layer does the same work and stores the same amount",
    ),
    "width": Curve(
        "width", model(4, 128, 4, 2, 128, 512), "width", (64, 128, 256, 512, 1024),
        ((1, 2), (1, 2)), "activations grow in proportion to the width; weights and matrix "
        "products grow with its square",
    ),
    "length": Curve(
        "length", model(4, 128, 4, 1, 128, 512), "length", (128, 256, 512, 1024, 2048, 4096),
        ((1, 2), (0, 1)), "matrix products in attention grow with the square of the length, and "
        "all other matrix products in proportion to the length; attention does not store the "
        "matrix of scores",
    ),
    "vocabulary": Curve(
        "vocabulary", model(2, 128, 4, 2, 128, 1024), "vocab_size", (1024, 4096, 16384, 65536),
        ((0, 1), (0, 1)), "only the embedding, its optimizer state and the loss grow",
    ),
    "ranks": Curve(
        "ranks", model(6, 128, 4, 4, 128, 512), "ranks", (1, 2, 4),
        ((0, 1), (0, 0)), "each rank has its own batch, so time is constant up to one rank per "
        "core, and then grows in proportion to the ranks; memory is that of one rank",
    ),
}  # fmt: skip


def work(way: str, values: dict[str, Any], started: float) -> None:
    """Measure a point in this process, in one of `WAYS`; the first rank prints the result."""
    torch.set_num_threads(1)
    with join_world(TrainingConfig(device="cpu", learning_rate=1e-3)) as world:
        found = WAYS[way](Case(**values), world, started)
        if world.is_main_process:
            print(json.dumps(found), flush=True)


def time_taken(case: Case, world: World, started: float) -> dict[str, float]:
    """Time the start-up and some steps."""
    step, _ = product_step(case, "sub", world)
    step()
    start_up = time.time() - started
    for _ in range(WARMUP):
        step()
    seconds = [timed(step)[0] for _ in range(STEPS)]
    return {"seconds": median(seconds), "slowest": max(seconds), "start_up": start_up}


def memory_taken(case: Case, world: World, started: float) -> dict[str, float]:
    """Return the peak allocation of the second step; the first creates the optimizer state."""
    with recorded() as record:
        step, _ = product_step(case, "sub", world)
        step()
        count_from_here()
        step()
    return {"peak_bytes": most_allocated(record)}


def recorded() -> profile:
    """Return a profiler that records every CPU allocation within its context."""
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def count_from_here() -> None:
    """Start counting allocations, or start again."""
    with record_function(MARK):
        pass


def most_allocated(record: profile) -> int:
    """Return the peak of allocated bytes since `count_from_here`.

    Allocations from before the profiler started do not count.
    """
    assert record.profiler is not None
    events: Any = record.profiler.kineto_results.events()  # pyright: ignore
    last = max(event.start_ns() for event in events if event.name() == MARK)
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for when, size in changes:
        now += size
        most = max(most, now) if when >= last else most
    return most


WAYS = {"time": time_taken, "memory": memory_taken}


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def spawn(case: Case, ranks: int, way: str) -> dict[str, float]:
    """Measure a point in separate processes, in one of `WAYS`.

    Raises:
        RuntimeError: If a process fails, with its output.
    """
    words = [sys.executable, "-m", "benchmarks.scaling", "--worker", way, json.dumps(asdict(case))]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if ranks > 1 else {}
    started = time.time()
    processes = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), **place}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(own if ranks > 1 else {})}
        processes.append(subprocess.Popen(
            [*words, str(started)], cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ))  # fmt: skip
    outputs = [process.communicate() for process in processes]
    for process, (_, error) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"{case}, {ranks} ranks: {error.strip().splitlines()[-1]}")
    return json.loads(outputs[0][0].splitlines()[-1])


def measure(name: str, curve: Curve, report: ProgressBars) -> dict[str, Any]:
    """Measure a curve; return its points, their slopes and the expected slopes."""
    points = []
    for number, size in enumerate(curve.sizes, 1):
        by_ranks = curve.vary == "ranks"
        case = curve.case if by_ranks else replace(curve.case, **{curve.vary: size})
        ranks = size if by_ranks else 1
        points.append({"size": size, **spawn(case, ranks, "time"), **spawn(case, ranks, "memory")})
        report.update(f"scaling: {name}", number, len(curve.sizes))
    slopes, last = (
        {key: slope(curve.sizes[start:], [point[key] for point in points[start:]])
         for key in ("seconds", "peak_bytes", "start_up")}
        for start in (0, -2)
    )  # fmt: skip
    return {
        "title": curve.title, "sizes": curve.case.describe(), "points": points, "slopes": slopes,
        "last_slopes": last, "expected": curve.expected, "why": curve.why,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the logarithms by least squares."""
    logs = ([math.log(value) for value in each] for each in (sizes, values))
    return linear_regression(*logs).slope


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; return and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--fresh", action="store_true", help="ignore the existing results")
    parser.add_argument("--commit", help="commit of the source if git is missing")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--name", default="scaling-cpu")
    parser.add_argument(
        "--worker", nargs=3, metavar=("WAY", "CASE", "START"), help=argparse.SUPPRESS
    )
    args = parser.parse_args(words)
    if args.worker:
        work(args.worker[0], json.loads(args.worker[1]), float(args.worker[2]))
        return {}
    where = machine(torch.device("cpu")) | {"threads": 1}
    commit = args.commit or source_commit()
    curves = {} if args.fresh else earlier_result(args.out, args.name, commit).get("curves", {})
    result = {"name": args.name, "commit": commit, "machine": where, "curves": curves}
    report = ProgressBars()
    for name in (name for name in args.curves if name not in curves):
        curves[name] = measure(name, CURVES[name], report)
        write_result(result, scaling_markdown(result), args.out)
    print(scaling_markdown(result))
    return result


if __name__ == "__main__":
    main()
