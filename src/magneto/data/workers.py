"""Batches made ahead of the step that uses them, on a thread or by worker processes.

The number of processes changes neither the order nor the content of batches: each is a function of
its step (`magneto.data.stream`). The pool's processes are forked, so that streams may hold anything
(functions, memory maps), and start in milliseconds. They never touch a GPU. They leave Ctrl-C and
SIGTERM, which reach all processes of a terminal or a job, to the main process, and end with it.
"""

from __future__ import annotations

import gc
import math
import mmap
import multiprocessing
import os
import signal
import time
import traceback
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
from magneto.data.stream import BatchStream, map_tensors, pinned

# Batches that are ready, or being made, for each process that makes them.
AHEAD = 2
# Bytes to whose multiples tensors are laid in shared memory, for every type and for wide loads.
ALIGNMENT = 64
# Seconds that a worker with a fault has to be seen as ended, after another one ended without.
PATIENCE = 2.0
# In the place of the step of a worker that has made no batch yet.
NOT_BEGUN = -1
# Signals that are the main process's alone.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What to try where a worker was killed, and where it ended otherwise.
OUT_OF_MEMORY = (
    "if memory ran out, as the system's log says then, lower training.num_workers or batch_size"
)
CRASH = "training.num_workers 0 makes the batch in the main process, where a debugger can look"


class BatchError(ValueError):
    """A batch could not be made."""


class WorkerTraceback(Exception):
    """What a worker saw, as text: the cause of a `BatchError`."""


@dataclass(frozen=True)
class Failure:
    """What a worker gives instead of a batch: any exception may be one that can't be sent."""

    reason: str
    traceback: str


class BatchesAhead:
    """Makes this rank's pieces of each step's batch before they are asked for.

    Args:
        stream: Of batches.
        parts: Pieces of a global batch.
        wanted: Which of them to make.
        pin: Whether to put them in pinned memory, for a GPU.
        num_workers: Processes that make them; 0 for a thread. The batches are the same.

    Raises:
        ValueError: If processes are asked for and the system can't fork them.
    """

    def __init__(
        self,
        stream: BatchStream,
        parts: int,
        wanted: Sequence[int],
        *,
        pin: bool = False,
        num_workers: int = 0,
    ) -> None:
        if num_workers and not hasattr(os, "fork"):
            raise ValueError("training.num_workers must be 0: this system can't fork processes")
        self.stream, self.parts, self.wanted = stream, parts, wanted
        self.pin, self.num_workers = pin, num_workers
        self.ahead = AHEAD * max(num_workers, 1)
        self.processes: list[Any] = []
        self._pool: ProcessPoolExecutor | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._making: Any = None  # of each worker its process and the step that it is at
        self._waited = 0.0

    def start(self, step: int = 0) -> Iterator[list[Any]]:
        """Return the batches, for ever, where `step` steps were taken before the first.

        Raises:
            BatchError: From the iterator, if a worker could not make a batch, or died.
        """
        if self.num_workers:
            self._fork()
        self._thread = ThreadPoolExecutor(1)
        return self._take(step)

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        # Without a lock, which a worker that is killed would hold for ever.
        self._making = context.RawArray("q", 2 * self.num_workers)
        turn = context.Lock()
        job = Job(self.stream, self.parts, self.wanted, self.ahead, self._making, turn)
        before = multiprocessing.active_children()
        self._pool = ProcessPoolExecutor(self.num_workers, context, begin_worker, (job,))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none in a half-made worker
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
        with suppress(BrokenProcessPool):  # told where a batch is taken
            return self._thread.submit(self._receive, step, self._pool.submit(make_shared, step))
        return self._thread.submit(self._tell_death, step)

    def _make(self, step: int) -> list[Any]:
        return self._pinned(self.stream.batch(step, self.parts, self.wanted))

    def _receive(self, step: int, made: Future[Any]) -> list[Any]:
        try:
            found = made.result()
        except BrokenProcessPool:
            return self._tell_death(step)
        except Exception as error:  # it could not be sent
            found = Failure(error_line(error), traceback.format_exc())
        if isinstance(found, Failure):
            message = f"the batch of step {step + 1} could not be made: {found.reason}"
            raise BatchError(message) from WorkerTraceback(found.traceback)
        try:
            return self._pinned(found.attach() if isinstance(found, SharedBatch) else found)
        except FileNotFoundError:  # the worker died with what it had made
            return self._tell_death(step)

    def _pinned(self, pieces: list[Any]) -> list[Any]:
        return [pinned(piece) for piece in pieces] if self.pin else pieces

    def _tell_death(self, step: int) -> NoReturn:
        """Say which worker ended, how, at which examples, and what to try.

        Where it had not begun a batch, `step` is named, whose batch is waited for.
        """
        steps = dict(zip(self._making[::2], self._making[1::2], strict=True))
        ended = wait([process.sentinel for process in self.processes])
        # The pool lets the others end as well, without a fault: one with a fault is to blame.
        until = time.monotonic() + PATIENCE
        while not (faulty := [worker for worker in self.processes if worker.exitcode]):
            if time.monotonic() > until or all(p.exitcode == 0 for p in self.processes):
                break
            time.sleep(0.01)
        dead = (faulty or [p for p in self.processes if p.sentinel in ended])[0]
        code = dead.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        advice = OUT_OF_MEMORY if code == -signal.SIGKILL else CRASH
        begun = steps.get(dead.pid, NOT_BEGUN)
        step = step if begun == NOT_BEGUN else begun
        where = (
            f"at the batch of step {step + 1} ({self.stream.names(step, self.parts, self.wanted)})"
        )
        raise BatchError(f"the data worker of process {dead.pid} {how} {where}; {advice}")

    def read_waited(self) -> float:
        """Return the seconds that the consumer stood still since this was last called."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """End the thread, and the processes, which write nothing."""
        for process in self.processes:
            process.kill()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


@dataclass
class Job:
    """What a worker process does.

    Attributes:
        stream: Of batches.
        parts: Pieces of a global batch.
        wanted: Which of them to make.
        ahead: Batches that may be made before the first of them is taken.
        making: Of each worker its process and the step that it is at, in shared memory.
        turn: Of the workers, to take their places there.
        slot: The worker's place there.
        kept: Steps and files of batches that the main process may not have taken yet.
    """

    stream: BatchStream
    parts: int
    wanted: Sequence[int]
    ahead: int
    making: Any
    turn: Any
    slot: int = 0
    kept: deque[tuple[int, int]] = field(default_factory=deque)


_job: Job | None = None  # of a worker process; the main process has none


def begin_worker(job: Job) -> None:
    """Make this process a worker, which ends with the main process."""
    global _job
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # a collection would write to, and so copy, all that is shared
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with job.turn:
        job.slot = list(job.making[::2]).index(0)
        job.making[2 * job.slot : 2 * job.slot + 2] = [os.getpid(), NOT_BEGUN]
    _job = job
    Thread(target=end_with, args=[os.getppid()], daemon=True).start()


def end_with(parent: int) -> None:
    """Wait for the main process to end, however it ends; then end this one."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def make_shared(step: int) -> Any:
    """Make a step's pieces in a worker, in memory that the main process can map."""
    assert _job is not None
    _job.making[2 * _job.slot + 1] = step
    while _job.kept and _job.kept[0][0] <= step - _job.ahead:
        os.close(_job.kept.popleft()[1])
    try:
        pieces = _job.stream.batch(step, _job.parts, _job.wanted)
        if not hasattr(os, "memfd_create"):
            return pieces
        shared = share(pieces)
    except Exception as error:  # sent to the main process, which raises it
        return Failure(error_line(error), traceback.format_exc())
    _job.kept.append((step, shared.file))
    return shared


@dataclass(frozen=True)
class SharedBatch:
    """A batch in one nameless file in memory: containers keep /dev/shm small.

    Attributes:
        empty: The batch with tensors on torch's "meta" device.
        process: The worker that has the file open.
        file: Its descriptor there.
    """

    empty: Any
    process: int
    file: int

    def attach(self) -> Any:
        """Return the batch on the same memory, which is freed with its last tensor."""
        file = os.open(f"/proc/{self.process}/fd/{self.file}", os.O_RDWR)
        try:
            return map_tensors(self.empty, Places(file).next)
        finally:
            os.close(file)


def share(batch: Any) -> SharedBatch:
    """Copy a batch's tensors into shared memory."""
    empty = map_tensors(batch, lambda tensor: torch.empty_like(tensor, device="meta"))
    sizes: list[int] = []
    map_tensors(empty, lambda tensor: (sizes.append(room(tensor)), tensor)[1])
    file = os.memfd_create("magneto-batch")
    os.ftruncate(file, max(sum(sizes), 1))
    places = Places(file)
    map_tensors(
        batch, lambda tensor: places.next(torch.empty_like(tensor, device="meta")).copy_(tensor)
    )
    return SharedBatch(empty, os.getpid(), file)


class Places:
    """Gives tensors on a shared file, one after the other."""

    def __init__(self, file: int) -> None:
        self.bytes = torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
        self.start = 0

    def next(self, empty: Tensor) -> Tensor:
        """Return the next tensor, of the type, shape and strides of an empty one."""
        start, self.start = self.start, self.start + room(empty)
        values = self.bytes[start : start + empty.numel() * empty.element_size()]
        return values.view(empty.dtype).as_strided(empty.shape, empty.stride())


def room(tensor: Tensor) -> int:
    """Return the bytes that a tensor takes, up to where the next one may begin."""
    return math.ceil(tensor.numel() * tensor.element_size() / ALIGNMENT) * ALIGNMENT
