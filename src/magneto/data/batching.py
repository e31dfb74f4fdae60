"""Batches in an order that is a function of (seed, position), so that a run resumes exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.config import error_line

Tokens = dict[str, Tensor]
# Examples that a message names.
LISTED = 32


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of `count` examples in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def make_named(
    make: Callable[[np.ndarray], Any],
    numbers: np.ndarray,
    name: Callable[[int], str] = "example {}".format,
) -> Any:
    """Make a batch of numbered examples.

    Args:
        make: From an array of numbers to a batch.
        numbers: Of the examples.
        name: Of an example, for messages, by its number.

    Raises:
        ValueError: If it can't be made; names the first example that can't be made alone, or the
            first and the last where each can.
    """
    try:
        return make(numbers)
    except Exception as error:
        for number in numbers:
            try:
                make(np.array([number]))
            except Exception as its:
                raise ValueError(f"{name(number)}: {error_line(its)}") from its
        where = f"{name(numbers[0])} to {name(numbers[-1])}" if len(numbers) else "no examples"
        raise ValueError(f"{where}, together: {error_line(error)}") from error


def listed(words: Sequence[Any], most: int = LISTED) -> str:
    """Return words, or numbers, as one line; the first of many."""
    line = ", ".join(str(word) for word in words[:most])
    return f"{line} and {len(words) - most} more" if len(words) > most else line


class ShuffledExamples:
    """Numbers of examples, shuffled anew each epoch; state is one integer.

    Args:
        count: Examples there are.
        batch_size: Examples of a global batch.
        seed: Of the order.
        make: From an array of example numbers to a batch.
    """

    def __init__(
        self, count: int, batch_size: int, seed: int, make: Callable[[np.ndarray], Any]
    ) -> None:
        self.count, self.batch_size, self.seed, self.make = count, batch_size, seed, make
        self.position = 0
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def order(self, epoch: int) -> np.ndarray:
        """Return the order of an epoch."""
        return epoch_order(self.count, self.seed, epoch)

    def _numbers(self, start: int, stop: int) -> np.ndarray:
        parts = []
        while start < stop:
            epoch, offset = divmod(start, self.count)
            if epoch != self._epoch:
                self._epoch, self._order = epoch, self.order(epoch)
            part = self._order[offset : offset + stop - start]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts)

    def next(self, parts: int, wanted: Sequence[int]) -> list[Any]:
        """Cut the next global batch in pieces; see `magneto.training.task.BatchStream`."""
        pieces = self._next_numbers(parts, wanted)
        self.position += self.batch_size
        return [make_named(self.make, piece, self._name) for piece in pieces]

    def _name(self, number: int) -> str:
        return f"example {number}"

    def _next_numbers(self, parts: int, wanted: Sequence[int]) -> list[np.ndarray]:
        numbers = self._numbers(self.position, self.position + self.batch_size)
        pieces = np.array_split(numbers, parts)
        return [pieces[number] for number in wanted]

    def name_next(self, parts: int, wanted: Sequence[int]) -> str:
        """Return the numbers of the next examples, in words."""
        return f"examples {listed(np.concatenate(self._next_numbers(parts, wanted)).tolist())}"

    def state_dict(self) -> dict[str, Any]:
        """Return the position, in examples."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position."""
        self.position = state["position"]


def cut_windows(tokens: np.ndarray, length: int) -> int:
    """Return how many windows of `length` tokens, each with its next token, there are."""
    return (len(tokens) - 1) // length


def window_batch(tokens: np.ndarray, length: int, numbers: np.ndarray) -> Tokens:
    """Return tokens and targets, both (len(numbers), length), of numbered windows."""
    rows = numbers[:, None] * length + np.arange(length + 1)
    return as_batch(np.asarray(tokens[rows], dtype=np.int64))


def as_batch(windows: np.ndarray) -> Tokens:
    """Split (rows, length + 1) into tokens and the tokens that follow them."""
    rows = torch.from_numpy(windows)
    return {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}


class StreamedWindows:
    """Packed windows of documents that are read and tokenised as training goes.

    Documents are shuffled in blocks. The state is where a block began (a count of documents, and
    the tokens left over from the block before) and how many of its windows are used; resuming
    reads past earlier documents without tokenising them.

    Args:
        documents: Gives the documents once through, in order; called for each epoch.
        encode: From a list of documents to their tokens, end to end.
        length: Tokens of a window.
        block: Documents of a block.
        batch_size: Windows of a global batch.
        seed: Of the order.
    """

    def __init__(
        self,
        documents: Callable[[], Iterator[str]],
        encode: Callable[[list[str]], np.ndarray],
        length: int,
        block: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self.documents, self.encode, self.length = documents, encode, length
        self.block, self.batch_size, self.seed = block, batch_size, seed
        self.epoch, self.read, self.used = 0, 0, 0
        self.carry: list[int] = []
        self._source: Iterator[str] | None = None
        self._windows = np.zeros((0, length + 1), np.int64)
        self._next_read, self._next_carry = 0, self.carry

    def _open_block(self) -> None:
        """Read the block that starts at document `read` of `epoch`, with `carry` before it."""
        if self._source is None:
            self._source = self.documents()
            for _ in range(self.read):
                next(self._source)
        texts = list(islice(self._source, self.block))
        order = np.random.default_rng([self.seed, self.epoch, self.read]).permutation(len(texts))
        fresh = self._encode(texts, order) if texts else np.zeros(0, np.int64)
        tokens = np.concatenate([np.asarray(self.carry, np.int64), fresh])
        count = max(len(tokens) - 1, 0) // self.length
        starts = np.arange(count)[:, None] * self.length
        self._windows = tokens[starts + np.arange(self.length + 1)]
        self._next_carry = tokens[count * self.length :].tolist()
        self._next_read = self.read + len(texts)
        if len(texts) < self.block:
            self._next_read = -1

    def _encode(self, texts: list[str], order: np.ndarray) -> np.ndarray:
        return make_named(
            lambda numbers: self.encode([texts[number] for number in numbers]),
            order,
            lambda number: f"document {self.read + number} of epoch {self.epoch}",
        )

    def _next_block(self) -> None:
        if self._next_read < 0:
            if self.read == 0 and len(self._windows) == 0:
                raise ValueError("the stream has too little text for one sequence")
            self.epoch, self.read, self._source = self.epoch + 1, 0, None
        else:
            self.read = self._next_read
        self.carry, self.used = self._next_carry, 0
        self._open_block()

    def next(self, parts: int, wanted: Sequence[int]) -> list[Any]:
        """Cut the next global batch in pieces; see `magneto.training.task.BatchStream`."""
        if self._source is None:
            self._open_block()
        rows: list[np.ndarray] = []
        missing = self.batch_size
        while missing:
            taken = self._windows[self.used : self.used + missing]
            self.used += len(taken)
            missing -= len(taken)
            rows.append(taken)
            if missing:
                self._next_block()
        pieces = np.array_split(np.concatenate(rows), parts)
        return [as_batch(pieces[number]) for number in wanted]

    def name_next(self, parts: int, wanted: Sequence[int]) -> str:
        """Say where the next windows are: a window may span documents."""
        where = f"document {self.read} of epoch {self.epoch}"
        return f"windows from {self.used} on after {where}"

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands."""
        return {"epoch": self.epoch, "read": self.read, "used": self.used, "carry": self.carry}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another stream stood."""
        self.epoch, self.read = state["epoch"], state["read"]
        self.used, self.carry = state["used"], list(state["carry"])
        self._source = None


class NumberedRows:
    """Another stream, with a function applied that knows the number of each row since the start.

    So what is drawn at random for a row does not depend on how its batch is cut, and a resumed
    stream draws the same again.

    Args:
        stream: Gives global batches of `batch_size` rows.
        batch_size: Rows of a global batch.
        make: From a piece and the numbers of its rows to what is given out.
    """

    def __init__(
        self, stream: Any, batch_size: int, make: Callable[[Any, np.ndarray], Any]
    ) -> None:
        self.stream, self.batch_size, self.make = stream, batch_size, make
        self.seen = 0

    def next(self, parts: int, wanted: Sequence[int]) -> list[Any]:
        """Cut the next global batch in pieces; see `magneto.training.task.BatchStream`."""
        numbers = np.array_split(np.arange(self.seen, self.seen + self.batch_size), parts)
        self.seen += self.batch_size
        pieces = self.stream.next(parts, wanted)
        return [
            self._make(piece, numbers[which]) for which, piece in zip(wanted, pieces, strict=True)
        ]

    def _make(self, piece: Any, numbers: np.ndarray) -> Any:
        try:
            return self.make(piece, numbers)
        except Exception as error:
            where = f"rows {numbers[0]} to {numbers[-1]} since the start"
            raise ValueError(f"{where}: {error_line(error)}") from error

    def name_next(self, parts: int, wanted: Sequence[int]) -> str:
        """Return what the other stream says."""
        return self.stream.name_next(parts, wanted)

    def state_dict(self) -> dict[str, Any]:
        """Return where both stand."""
        return {"seen": self.seen, "stream": self.stream.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another stream stood."""
        self.seen = state["seen"]
        self.stream.load_state_dict(state["stream"])
