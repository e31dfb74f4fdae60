"""Long recordings in overlapping windows, and one transcript of their words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from magneto.speech.words import Word

# How far apart the same word may be in two windows, in seconds.
TOLERANCE = 0.6
# A word so near to where a window was cut may be half a word.
EDGE = 0.1


@dataclass(frozen=True)
class Window:
    """A stretch of a recording.

    Attributes:
        start: In samples from the recording's begin.
        samples: Mono, float32.
        last: Whether the recording ends with it.
    """

    start: int
    samples: np.ndarray
    last: bool


def cut_windows(pieces: Iterable[np.ndarray], size: int, overlap: int) -> Iterator[Window]:
    """Cut samples that come in pieces of any size; never more than a window and a piece is held.

    Args:
        pieces: Samples, one after another.
        size: Of a window.
        overlap: Of a window with the next.

    Yields:
        Windows, each when its samples are there and it is known whether more follow; at least one.
        The last may be shorter, and has more than the overlap if it is not the first.
    """
    held, start = np.zeros(0, np.float32), 0
    for piece in pieces:
        held = np.concatenate((held, piece))
        # One sample more says that this window is not the last.
        while len(held) > size:
            yield Window(start, held[:size], False)
            held, start = held[size - overlap :], start + size - overlap
    yield Window(start, held, True)


class JoinedWords:
    """One transcript from the words of overlapping windows, in the order of time.

    In an overlap both windows have heard the same, the one without what follows, the other without
    what went before. They are joined at a word that both have, nearest to the middle; where they
    agree on none, in the middle.

    Args:
        overlap: In seconds.
    """

    def __init__(self, overlap: float) -> None:
        self.overlap = overlap
        # Words that the next window may change: from a little before where it begins.
        self._waiting: list[Word] = []

    def add(self, words: Sequence[Word], start: float, stop: float, last: bool) -> list[Word]:
        """Take the words of the next window; return those that no later window changes.

        Args:
            words: Of the window, with times of the recording.
            start: Of the window, in seconds.
            stop: Its end.
            last: Whether it is the last one.
        """
        found = list(words)
        if start > 0:
            kept, new = join(self._waiting, words, start, start + self.overlap)
            found = [*kept, *new]
        settled = stop - self.overlap - 2 * TOLERANCE
        ready = list(takewhile(lambda word: last or _middle(word) < settled, found))
        self._waiting = found[len(ready) :]
        return ready


def join(
    before: Sequence[Word], after: Sequence[Word], start: float, stop: float
) -> tuple[list[Word], list[Word]]:
    """Return what is kept of the words of two windows that overlap from `start` to `stop`."""
    middle = (start + stop) / 2
    pairs = common_words(before, after, start, stop)
    if pairs:
        off = {
            (one, other): abs(_middle(before[one]) + _middle(after[other]) - 2 * middle)
            for one, other in pairs
        }
        one, other = min(pairs, key=off.__getitem__)
        return list(before[: one + 1]), list(after[other + 1 :])
    kept = [word for word in before if _middle(word) < middle]
    end = kept[-1].end if kept else start
    return kept, [word for word in after if _middle(word) >= max(middle, end)]


def common_words(
    before: Sequence[Word], after: Sequence[Word], start: float, stop: float
) -> list[tuple[int, int]]:
    """Return pairs of equal words at about the same time, by number, in order.

    Of all such sequences it is that of the most and nearest pairs: a word that is said several
    times in a row is to meet itself.

    Args:
        before: Of a window that ends at `stop`.
        after: Of one that begins at `start`.
        start: In seconds.
        stop: In seconds.
    """
    rows = [n for n, word in enumerate(before) if word.start > start - TOLERANCE
            and word.end < stop - EDGE]  # fmt: skip
    columns = [n for n, word in enumerate(after) if word.start > start + EDGE
               and word.end < stop + TOLERANCE]  # fmt: skip
    near = np.array([[_nearness(before[i], after[j]) for j in columns] for i in rows])
    # best[i, j]: of the words from i and from j on.
    best = np.zeros((len(rows) + 1, len(columns) + 1))
    for i in reversed(range(len(rows))):
        for j in reversed(range(len(columns))):
            best[i, j] = max(best[i + 1, j], best[i, j + 1], best[i + 1, j + 1] + near[i, j])
    pairs, i, j = [], 0, 0
    while i < len(rows) and j < len(columns):
        if best[i, j] == best[i + 1, j]:
            i += 1
        elif best[i, j] == best[i, j + 1]:
            j += 1
        else:
            pairs.append((rows[i], columns[j]))
            i, j = i + 1, j + 1
    return pairs


def _nearness(one: Word, other: Word) -> float:
    """Return 1 for the same word at the same time, 0 for another or one too far off."""
    if one.text.casefold() != other.text.casefold():
        return 0.0
    return max(1 - abs(_middle(one) - _middle(other)) / TOLERANCE, 0.0)


def _middle(word: Word) -> float:
    return (word.start + word.end) / 2
