"""Prefetching: a thread makes the next batches while the current one is computed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from queue import Queue
from threading import Event, Thread
from typing import Any

from magneto.training.batch import pinned
from magneto.training.task import BatchStream

# Batches made ahead of the step that uses them.
AHEAD = 2


class Prefetch:
    """Runs a stream on a thread, a few steps ahead.

    Iterating gives (pieces, state of the stream after them).

    Args:
        stream: Of batches; nobody else may use it meanwhile.
        parts: Pieces of a batch.
        wanted: Which of them to give.
        pin: Whether to put them in pinned memory, for a GPU.
    """

    def __init__(
        self, stream: BatchStream, parts: int, wanted: Sequence[int], *, pin: bool = False
    ):
        self.stream = stream
        self.parts = parts
        self.wanted = wanted
        self.pin = pin
        self._waited = 0.0
        self._queue: Queue[Any] = Queue(maxsize=AHEAD)
        self._stop = Event()
        self._thread = Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                pieces = self.stream.next(self.parts, self.wanted)
                pieces = [pinned(piece) for piece in pieces] if self.pin else pieces
                self._queue.put((pieces, self.stream.state_dict()))
        except Exception as error:  # handed to the consumer, which raises it
            self._queue.put(error)

    def __iter__(self) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """Give the batches, step by step, for ever."""
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
        """Stop the thread."""
        self._stop.set()
        while self._thread.is_alive():
            while not self._queue.empty():
                self._queue.get()
            self._thread.join(timeout=0.05)
