"""Prefetching: a thread makes the next batches while the current one is computed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from queue import Queue
from threading import Event, Thread
from typing import Any

from magneto.training.batch import pinned
from magneto.training.task import BatchStream
from magneto.training.workers import Made, NoWorkers, Workers

# Batches that are ready, ahead of the step that uses them.
AHEAD = 2


class Prefetch:
    """Takes batches on a thread, a few steps ahead; the thread or worker processes make them.

    Iterating gives (pieces, state of the stream after them).

    Args:
        stream: Of batches; nobody else may use it meanwhile.
        parts: Pieces of a batch.
        wanted: Which of them to give.
        pin: Whether to put them in pinned memory, for a GPU.
        num_workers: Processes that make them; 0 for the thread. The batches are the same.
    """

    def __init__(
        self,
        stream: BatchStream,
        parts: int,
        wanted: Sequence[int],
        *,
        pin: bool = False,
        num_workers: int = 0,
    ):
        self.pin = pin
        self.makers = (
            Workers(stream, parts, wanted, num_workers)
            if num_workers
            else NoWorkers(stream, parts, wanted)
        )
        self._waited = 0.0
        self._queue: Queue[Any] = Queue(maxsize=AHEAD)
        self._stop = Event()
        self._thread: Thread | None = None

    def _work(self, batches: Iterator[Made]) -> None:
        try:
            for pieces, state in batches:
                pieces = [pinned(piece) for piece in pieces] if self.pin else pieces
                self._queue.put((pieces, state))
                if self._stop.is_set():
                    return
        except Exception as error:  # handed to the consumer, which raises it
            self._queue.put(error)

    def __iter__(self) -> Iterator[Made]:
        """Give the batches, step by step, for ever."""
        return self.start(0)

    def start(self, step: int) -> Iterator[Made]:
        """Give the batches, for ever, where `step` steps were taken before the first."""
        self._thread = Thread(target=self._work, args=[self.makers.start(step)], daemon=True)
        self._thread.start()
        while True:
            start = time.perf_counter()
            item = self._queue.get()
            self._waited += time.perf_counter() - start
            if isinstance(item, Exception):
                raise item
            yield item

    def read_waited(self) -> float:
        """Return the seconds that the consumer stood still since this was last called."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Stop the thread and the worker processes."""
        self._stop.set()
        self.makers.stop()
        while self._thread is not None and self._thread.is_alive():
            while not self._queue.empty():
                self._queue.get()
            self._thread.join(timeout=0.05)
