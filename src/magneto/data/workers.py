"""Data workers make batches ahead of training, on a thread or in processes.

The number of processes does not change the batches, since each batch is a function of its step
(`magneto.data.stream`). Worker processes are forked, so workers start in milliseconds and can use
any object of the main process. Worker processes never use a GPU, ignore Ctrl-C and SIGTERM, and
exit with the main process.
"""

from __future__ import annotations

import gc
import math
import mmap
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, NoReturn

import torch
from torch import Tensor

from magneto.config import error_line
from magneto.data.stream import BatchStream, map_tensors, named_tensors, pinned

# Batches ready or in progress per worker.
AHEAD = 2
# Alignment of tensors in shared memory, in bytes: enough for every type and vector load.
ALIGNMENT = 64
# Seconds to wait for the exit of a faulty worker after another one exited without fault.
EXIT_TIMEOUT = 2.0
# Step of a worker before its first batch.
NOT_BEGUN = -1
# Signals for the main process only.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Advice after a killed worker, and after one that crashed.
OUT_OF_MEMORY = "if memory ran out (see the system log), lower training.num_workers or batch_size"
CRASH = "to debug, set training.num_workers to 0. Batches are then made in the main process"


class BatchError(ValueError):
    """Failure to make a batch."""


class BatchPrefetcher:
    """Preparation of this rank's micro-batches ahead of training."""

    def __init__(
        self,
        stream: BatchStream,
        parts: int,
        wanted: Sequence[int],
        *,
        pin: bool = False,
        num_workers: int = 0,
    ) -> None:
        self.stream, self.parts, self.wanted = stream, parts, wanted
        self.pin, self.num_workers = pin, num_workers
        self.ahead = AHEAD * max(num_workers, 1)
        self.processes: list[Any] = []
        self._pool: ProcessPoolExecutor | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._making: Any = None  # process id and step of each worker
        self._waited = 0.0

    def start(self, step: int = 0) -> Iterator[list[Any]]:
        """Return an endless iterator, which yields the micro-batches of each step from `step` on.

        Raises:
            BatchError: While iterating, if a batch can't be made.
        """
        if self.num_workers:
            self._fork()
        self._thread = ThreadPoolExecutor(1)
        return self._take(step)

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        # No lock: a killed worker would hold it for ever.
        self._making = context.RawArray("q", 2 * self.num_workers)
        turn = context.Lock()
        job = WorkerJob(self.stream, self.parts, self.wanted, self.ahead, self._making, turn)
        before = multiprocessing.active_children()
        self._pool = ProcessPoolExecutor(self.num_workers, context, start_worker, (job,))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until workers are ready
        try:
            self._pool.submit(os.getpid)  # starts all of them
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.processes = [p for p in multiprocessing.active_children() if p not in before]

    def _take(self, step: int) -> Iterator[list[Any]]:
        waiting = deque(self._ask(step + number) for number in range(self.ahead))
        for asked in count(step + self.ahead):
            start = time.perf_counter()
            pieces = waiting.popleft().result()
            self._waited += time.perf_counter() - start
            yield pieces
            waiting.append(self._ask(asked))

    def _ask(self, step: int) -> Future[list[Any]]:
        assert self._thread is not None
        if self._pool is None:
            return self._thread.submit(self._make, step)
        with suppress(BrokenProcessPool):  # reported when the batch is needed
            return self._thread.submit(self._receive, step, self._pool.submit(make_shared, step))
        return self._thread.submit(self._raise_death, step)

    def _make(self, step: int) -> list[Any]:
        return self._pinned(self.stream.batch(step, self.parts, self.wanted))

    def _receive(self, step: int, made: Future[Any]) -> list[Any]:
        try:
            found = made.result()
        except BrokenProcessPool:
            return self._raise_death(step)
        except Exception as error:  # the pool adds the worker's traceback
            message = f"making the batch of step {step + 1} failed: {error_line(error)}"
            raise BatchError(message) from error
        try:
            return self._pinned(found.attach() if isinstance(found, SharedBatch) else found)
        except FileNotFoundError:  # the worker died with the batch
            return self._raise_death(step)

    def _pinned(self, pieces: list[Any]) -> list[Any]:
        return [pinned(piece) for piece in pieces] if self.pin else pieces

    def _raise_death(self, step: int) -> NoReturn:
        steps = dict(zip(self._making[::2], self._making[1::2], strict=True))
        ended = wait([process.sentinel for process in self.processes])
        # The pool also ends the healthy workers, without fault. Look for the faulty one.
        until = time.monotonic() + EXIT_TIMEOUT
        while not (faulty := [worker for worker in self.processes if worker.exitcode]):
            if time.monotonic() > until or all(p.exitcode == 0 for p in self.processes):
                break
            time.sleep(0.01)
        dead = (faulty or [p for p in self.processes if p.sentinel in ended])[0]
        code = dead.exitcode or 0
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )
        advice = OUT_OF_MEMORY if code == -signal.SIGKILL else CRASH
        begun = steps.get(dead.pid, NOT_BEGUN)
        step = step if begun == NOT_BEGUN else begun
        where = (
            f"at the batch of step {step + 1} ({self.stream.names(step, self.parts, self.wanted)})"
        )
        raise BatchError(f"the data worker with process ID {dead.pid} {how} {where}; {advice}")

    def read_wait_seconds(self) -> float:
        """Return how many seconds training waited for batches since the previous call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


@dataclass
class WorkerJob:
    """State of a worker process."""

    stream: BatchStream
    parts: int
    wanted: Sequence[int]
    ahead: int  # largest number of batches made ahead
    making: Any  # process id and step of each worker, in shared memory
    turn: Any  # lock that a worker holds while it chooses its slot
    slot: int = 0  # slot of this worker in `making`
    # Step and file descriptor of each batch that the main process may still need.
    kept: deque[tuple[int, int]] = field(default_factory=deque)


_job: WorkerJob | None = None  # set in worker processes only


def start_worker(job: WorkerJob) -> None:
    global _job
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # a collection would write to shared pages and so copy them
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with job.turn:
        job.slot = list(job.making[::2]).index(0)
        job.making[2 * job.slot : 2 * job.slot + 2] = [os.getpid(), NOT_BEGUN]
    _job = job
    Thread(target=exit_with_parent, args=[os.getppid()], daemon=True).start()


def exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def make_shared(step: int) -> Any:
    assert _job is not None
    _job.making[2 * _job.slot + 1] = step
    while _job.kept and _job.kept[0][0] <= step - _job.ahead:
        os.close(_job.kept.popleft()[1])
    try:
        pieces = _job.stream.batch(step, _job.parts, _job.wanted)
        if not hasattr(os, "memfd_create"):
            return pieces
        shared = share(pieces)
    except Exception as error:  # some exceptions can't be pickled
        raise BatchError(error_line(error)) from error
    _job.kept.append((step, shared.file))
    return shared


@dataclass(frozen=True)
class SharedBatch:
    """Batch in an anonymous file (memfd) of a worker, not in /dev/shm, which containers limit."""

    empty: Any  # the batch with tensors on torch's "meta" device
    process: int
    file: int

    def attach(self) -> Any:
        file = os.open(f"/proc/{self.process}/fd/{self.file}", os.O_RDWR)
        try:
            return map_tensors(self.empty, SharedTensors(file).next)
        finally:
            os.close(file)


def share(batch: Any) -> SharedBatch:
    empty = map_tensors(batch, lambda tensor: torch.empty_like(tensor, device="meta"))
    file = os.memfd_create("magneto-batch")
    os.ftruncate(file, max(sum(map(aligned_bytes, named_tensors(empty).values())), 1))
    places = SharedTensors(file)
    map_tensors(
        batch, lambda tensor: places.next(torch.empty_like(tensor, device="meta")).copy_(tensor)
    )
    return SharedBatch(empty, os.getpid(), file)


class SharedTensors:
    """Shared file with the tensors of a batch, one after another."""

    def __init__(self, file: int) -> None:
        self.bytes = torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
        self.start = 0

    def next(self, empty: Tensor) -> Tensor:
        start, self.start = self.start, self.start + aligned_bytes(empty)
        values = self.bytes[start : start + empty.numel() * empty.element_size()]
        return values.view(empty.dtype).as_strided(empty.shape, empty.stride())


def aligned_bytes(tensor: Tensor) -> int:
    return math.ceil(tensor.numel() * tensor.element_size() / ALIGNMENT) * ALIGNMENT
