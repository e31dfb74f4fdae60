"""Batches made by worker processes, whose number changes neither their order nor their content.

Each of W workers has a copy of the stream. Worker w makes the batches w, w + W, w + 2 W, ... and
passes over the others, which costs their planning only; the main process takes from one worker
after the other. With a batch comes the state of the stream after it, as without workers.

Workers are forked, so that streams may hold anything (functions, memory maps), and start in
milliseconds. They never touch a GPU. They leave Ctrl-C and SIGTERM, which reach all processes of a
terminal or a job, to the main process, and end with it, however it ends: their pipe closes.

torch's DataLoader is not used, because it reports a dead worker from a signal handler, in the
middle of whatever the main process does, or after seconds of polling, and not which batch it was
making; because SIGTERM to a job ends its workers before the run's checkpoint is written; and
because each tensor on its way holds an open file and a part of /dev/shm.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NoReturn

import torch

from magneto.config import error_line
from magneto.training.shared_memory import attach, share
from magneto.training.task import BatchStream

# Batches that each worker may have made, or be making, before they are used.
AHEAD = 2
# Signals that are the main process's alone.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What to try where a worker was killed, and where it ended otherwise.
OUT_OF_MEMORY = (
    "if memory ran out, as the system's log says then, lower training.num_workers or batch_size"
)
CRASH = "training.num_workers 0 makes the batch in the main process, where a debugger can look"

Made = tuple[list[Any], dict[str, Any]]
"""Pieces of a batch, and the state of the stream after them."""


class BatchError(ValueError):
    """A batch could not be made."""


class WorkerTraceback(Exception):
    """What a worker saw, as text: the cause of a `BatchError`."""


@dataclass(frozen=True)
class Failure:
    """What a worker sends instead of a batch."""

    reason: str
    traceback: str


class NoWorkers:
    """Makes the batches in this process."""

    def __init__(self, stream: BatchStream, parts: int, wanted: Sequence[int]) -> None:
        self.stream, self.parts, self.wanted = stream, parts, wanted

    def start(self, step: int) -> Iterator[Made]:
        """Return the batches, for ever."""
        while True:
            yield self.stream.next(self.parts, self.wanted), self.stream.state_dict()

    def stop(self) -> None:
        """Nothing is to be stopped."""
        return None


class Workers:
    """Makes the batches in processes of their own.

    Args:
        stream: Of batches; each worker goes on from where it stands at the start.
        parts: Pieces of a batch.
        wanted: Which of them to give.
        count: Of workers, 1 or more.

    Raises:
        ValueError: If the system can't fork processes.
    """

    def __init__(self, stream: BatchStream, parts: int, wanted: Sequence[int], count: int) -> None:
        if not hasattr(os, "fork"):
            raise ValueError("training.num_workers must be 0: this system can't fork processes")
        self.stream, self.parts, self.wanted, self.count = stream, parts, wanted, count
        self.processes: dict[int, int] = {}
        self._state: dict[str, Any] = {}  # of the stream, before the next batch to take
        self._connections: list[Connection] = []

    def start(self, step: int) -> Iterator[Made]:
        """Start the processes, and return the batches, for ever.

        At most `AHEAD` batches of each worker are made before they are taken.

        Args:
            step: Steps before the first batch, for messages.

        Raises:
            BatchError: From the iterator, if a batch could not be made or its worker died.
        """
        self._state = self.stream.state_dict()
        self.stream.load_state_dict(self._state)  # closes files, which workers must not share
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none in a half-made worker
        try:
            for _ in range(self.count):
                self._fork()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return self._take_all(step)

    def _fork(self) -> None:
        ours, theirs = Pipe()
        self._connections.append(ours)
        process = os.fork()
        if process == 0:
            _run_worker(self.stream, self.parts, self.wanted, theirs, self._connections)
        theirs.close()
        self.processes[len(self.processes)] = process

    def _take_all(self, first: int) -> Iterator[Made]:
        ahead = AHEAD * self.count
        for number in range(ahead):
            self._ask(number)
        for number in itertools.count():
            pieces, self._state = self._take(number, first + number + 1)
            yield pieces, self._state
            self._ask(number + ahead)

    def _ask(self, number: int) -> None:
        with suppress(OSError):  # a dead worker is found where its batch is taken
            self._connections[number % self.count].send(number)

    def _take(self, number: int, step: int) -> Made:
        """Return a batch by its number since the start; `step` is the one it is for."""
        connection = self._connections[number % self.count]
        try:
            made = connection.recv()
            if not isinstance(made, Failure):
                empty, state = made
                return attach(empty, recv_handle(connection)), state
        except (EOFError, OSError):
            raise BatchError(self._obituary(number % self.count, step)) from None
        message = f"the batch of step {step} could not be made: {made.reason}"
        raise BatchError(message) from WorkerTraceback(made.traceback)

    def _obituary(self, worker: int, step: int) -> str:
        """Say how a worker ended, on which examples, and what to try."""
        process = self.processes.pop(worker, None)
        if process is None:
            return "the workers were stopped"
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self.stream.load_state_dict(self._state)
        examples = self.stream.name_next(self.parts, self.wanted)
        advice = OUT_OF_MEMORY if code == -signal.SIGKILL else CRASH
        where = f"at the batch of step {step} ({examples})"
        return f"data worker {worker} (process {process}) {how} {where}; {advice}"

    def stop(self) -> None:
        """End the processes; they write nothing, so at once."""
        while self.processes:
            _, process = self.processes.popitem()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _run_worker(
    stream: BatchStream,
    parts: int,
    wanted: Sequence[int],
    connection: Connection,
    others: Sequence[Connection],
) -> NoReturn:
    """Be a worker until the main process is gone; nothing of the main process's is cleaned up."""
    code = 1
    try:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for other in others:
            other.close()  # the main process's ends: else they would not close with it
        gc.freeze()  # a collection would write to, and so copy, all that is shared
        torch.set_num_threads(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        with torch.no_grad():
            _serve(stream, parts, wanted, connection)
    except (EOFError, OSError):
        code = 0
    finally:
        os._exit(code)


def _serve(
    stream: BatchStream, parts: int, wanted: Sequence[int], connection: Connection
) -> NoReturn:
    """Make each batch that is asked for, by its number since the start."""
    planned = 0
    while True:
        number = connection.recv()
        try:
            for _ in range(planned, number):
                stream.next(parts, [])
            pieces = stream.next(parts, wanted)
            planned = number + 1
            empty, file = share(pieces)
            connection.send((empty, stream.state_dict()))
            send_handle(connection, file, os.getppid())
            os.close(file)
        except Exception as error:  # sent to the main process, which raises it
            connection.send(Failure(error_line(error), traceback.format_exc()))
