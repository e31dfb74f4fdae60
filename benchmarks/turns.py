"""Contenders that take turns at one training step, each in its own process.

Each process has its own memory and allocator, so its memory can be measured. Only one works at a
time; the others wait for their turn. The processes are forked from one that has imported the
packages and computed nothing.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], Any]
Build = Callable[[], tuple[Step, nn.Module | None]]
"""Makes a contender ready: what takes one step, and its model if it has one."""

# Seconds of steps that a turn is made of, at least one step; and at most so many steps.
TURN, MOST = 0.4, 10
# Steps before the first turn that counts.
WARMUP = 2
CLEAR = Path("/proc/self/clear_refs")
CPU = torch.device("cpu")
# Of peers and of ours.
LEARNING_RATE = 1e-4


def usual_step(
    parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor]
) -> Callable[[], Tensor]:
    """Return a function that takes one step of the usual loop and returns the loss.

    The loop: the loss, backward, the gradient norm clipped at 1, fused AdamW.
    """
    trained = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, fused=True)

    def step() -> Tensor:
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step


@dataclass
class Entry:
    """One contender with its measurements.

    Attributes:
        name: Name of the contender.
        small: Builds it at a small size to import and load its packages.
        build: Builds it.
        seconds: Wall-clock time of each step.
        processor_seconds: Processor time of each step over all threads.
        found: Parameters, losses and peak memory of its process.
        failed: Reason why it cannot be measured; "" if it can.
    """

    name: str
    small: Build
    build: Build
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    failed: str = ""


def take_turns(
    entries: Sequence[Entry], seconds: float, threads: int, report: Callable[[int], None],
    rounds: int = 5, most: int = 40,
) -> int:  # fmt: skip
    """Time the entries in turns in a new random order each round; return the number of rounds.

    Args:
        entries: Contenders; their measurements are added to them.
        seconds: Time of all rounds together; no round starts after it.
        threads: CPU threads of each contender.
        report: Called with the number of each round.
        rounds: Least number of rounds, however long they take.
        most: Largest number of rounds.
    """
    players = [(entry, Player(entry, threads)) for entry in entries]
    playing = [(entry, player) for entry, player in players if not entry.failed]
    order, end = random.Random(1), time.monotonic() + seconds
    number = 0
    while playing and number < most and (number < rounds or time.monotonic() < end):
        for entry, player in order.sample(playing, len(playing)):
            wall, processor = player.ask("turn")
            entry.seconds += wall
            entry.processor_seconds += processor
        number += 1
        report(number)
    for entry, player in playing:
        entry.found |= player.ask("end")
        player.close()
    return number


def summary(entry: Entry) -> dict[str, Any]:
    """Return the row of an entry: medians and quartiles in milliseconds, memory in MiB."""
    peak_bytes = entry.found.get("peak_bytes")
    return {
        "contender": entry.name,
        "parameters": entry.found["parameters"],
        "losses": entry.found["losses"],
        **times_row(entry.seconds),
        "processor_median_ms": 1e3 * quantiles(entry.processor_seconds, n=2)[0],
        "peak_mib": None if peak_bytes is None else peak_bytes / 2**20,
    }


class Player:
    """Handle of a contender's process."""

    def __init__(self, entry: Entry, threads: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.preload"])
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=play, args=(other, entry.small, entry.build, threads))
        self.process.start()
        other.close()
        try:
            answer = self.pipe.recv()
        except EOFError:
            answer = "its process ended"
        if isinstance(answer, str):
            entry.failed = answer
            self.close()
        else:
            entry.found |= answer

    def ask(self, what: str) -> Any:
        """Send a request and wait for the answer."""
        self.pipe.send(what)
        return self.pipe.recv()

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(timeout=20)
        self.process.kill()


def play(pipe: Connection, small: Build, build: Build, threads: int) -> None:
    """Run a contender: build it, report that, and take turns until the end."""
    torch.set_num_threads(threads)
    try:
        tiny, _ = small()
        tiny()
        del tiny
        gc.collect()
        before = reset_peak()
        step, model = build()
        losses = [None if (loss := step()) is None else float(loss) for _ in range(WARMUP)]
        reset_peak()  # memory for building does not belong to a step
        once, _ = timed(step)
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0].replace("_", "-")
        pipe.send(f"not installed: pip install {package}")
        return
    except Exception as error:  # the others are still measured
        pipe.send(f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}")
        return
    count = sum(p.numel() for p in model.parameters()) if model is not None else 0
    pipe.send({"parameters": count, "losses": losses})
    steps = min(max(1, round(TURN / once)), MOST)
    while pipe.recv() == "turn":
        taken = [timed(step) for _ in range(steps)]
        pipe.send(([wall for wall, _ in taken], [processor for _, processor in taken]))
    pipe.send({"peak_bytes": peak(before) if model is not None else None})


def timed(step: Step, device: torch.device = CPU) -> tuple[float, float]:
    """Take one step; return its wall-clock seconds and its processor seconds."""
    wait(device)
    wall, processor = time.perf_counter(), time.process_time()
    step()
    wait(device)
    return time.perf_counter() - wall, time.process_time() - processor


def wait(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times_row(seconds: Sequence[float]) -> dict[str, float]:
    """Return the number of timed steps, and the median in milliseconds with its quartiles."""
    low, median, high = quantiles(seconds, n=4, method="inclusive")
    return {
        "steps": len(seconds),
        "median_ms": 1e3 * median,
        "quartile_1_ms": 1e3 * low,
        "quartile_3_ms": 1e3 * high,
    }


def reset_peak() -> int | None:
    """Reset the peak of memory; return the bytes in use, or None if unknown."""
    with suppress(OSError):
        CLEAR.write_text("5", encoding="ascii")
        return int(resident("VmRSS"))
    return None


def resident(field: str) -> float:
    """Return a memory field of this process (VmRSS, VmHWM), in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def peak(before: int | None) -> int | None:
    """Return the peak of bytes in use since `reset_peak`, minus those in use then."""
    return None if before is None else int(resident("VmHWM")) - before
