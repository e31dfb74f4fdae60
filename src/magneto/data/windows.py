"""Windows of tokens: rows of equal length, cut from text whose documents lie end to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from magneto.data.stream import make_named

Tokens = dict[str, Tensor]


def cut_windows(tokens: np.ndarray, length: int) -> int:
    """Return how many windows of `length` tokens, each with its next token, there are."""
    return max(len(tokens) - 1, 0) // length


def windows_of(tokens: np.ndarray, length: int, numbers: np.ndarray) -> np.ndarray:
    """Return numbered windows with their next token, int64 (len(numbers), length + 1)."""
    rows = numbers[:, None] * length + np.arange(length + 1)
    return np.asarray(tokens[rows], dtype=np.int64)


def with_targets(windows: np.ndarray) -> Tokens:
    """Split (rows, length + 1) into tokens and the tokens that follow them."""
    rows = torch.from_numpy(windows)
    return {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}


class StreamedBlocks:
    """Windows of documents that are read and tokenised as training goes, block by block.

    A block is so many documents in random order; what does not fill its last window is left out.
    The order depends on the seed, the epoch and the block; how many windows there are on neither
    seed nor epoch, so a run that is resumed reads past earlier documents without tokenising them.

    Args:
        documents: Gives the documents once through, in order; called for each epoch.
        encode: From a list of documents to their tokens, end to end.
        length: Tokens of a window.
        size: Documents of a block.
        seed: Of the order.
        counts: File that keeps the number of windows of each block.

    Raises:
        ValueError: If the file says that the whole stream has too little text for one window.
    """

    def __init__(
        self,
        documents: Callable[[], Iterator[str]],
        encode: Callable[[list[str]], np.ndarray],
        length: int,
        size: int,
        seed: int,
        counts: Path,
    ) -> None:
        self.documents, self.encode = documents, encode
        self.length, self.size, self.seed, self.counts = length, size, seed, counts
        self.blocks: int | None = None  # of an epoch, as soon as its end was seen
        self.known: dict[int, int] = {}
        if counts.is_file():
            self.known = dict(filter(None, map(as_count, counts.read_bytes().split(b"\n"))))
            self.blocks = self.known.pop(-1, None)
            self._check_not_empty()
        self._next, self._source = 0, documents()

    def windows(self, number: int) -> list[tuple[int, int, np.ndarray]]:
        """Return a block's examples: (epoch, place in the epoch's block, window).

        Raises:
            ValueError: If the whole stream has too little text for one window.
        """
        epoch, block = divmod(number, self.blocks) if self.blocks else (0, number)
        texts = self._read(block)
        if len(texts) < self.size and self.blocks is None:
            self.blocks = block + 1
            self._keep(-1, self.blocks)
        order = np.random.default_rng([self.seed, epoch, block]).permutation(len(texts))
        tokens = np.zeros(0, np.int64) if not texts else make_named(
            lambda numbers: self.encode([texts[number] for number in numbers]),
            order,
            lambda place: f"document {block * self.size + place} of epoch {epoch}",
        )  # fmt: skip
        found = windows_of(tokens, self.length, np.arange(cut_windows(tokens, self.length)))
        if block not in self.known:
            self._keep(block, len(found))
        self._check_not_empty()
        return [(epoch, block * self.size + place, row) for place, row in enumerate(found)]

    def count(self, number: int) -> int | None:
        """Return how many windows a block has; None if it was never read."""
        return self.known.get(number % self.blocks if self.blocks else number)

    def _check_not_empty(self) -> None:
        if len(self.known) == self.blocks and not any(self.known.values()):
            raise ValueError("the stream has too little text for one sequence")

    def _read(self, block: int) -> list[str]:
        """Read a block's documents, past those before it."""
        if self._next > block:
            self._next, self._source = 0, self.documents()
        for _ in islice(self._source, (block - self._next) * self.size):
            pass
        self._next = block + 1
        return list(islice(self._source, self.size))

    def _keep(self, block: int, windows: int) -> None:
        if block >= 0:
            self.known[block] = windows
        with self.counts.open("a", encoding="utf-8") as file:
            file.write(json.dumps([block, windows]) + "\n")


def as_count(line: bytes) -> tuple[int, int] | None:
    """Return (block, windows) of a line of the file of counts; None of one that was cut short."""
    try:
        block, windows = json.loads(line)
    except (ValueError, TypeError):
        return None
    return (block, windows) if type(block) is type(windows) is int else None
