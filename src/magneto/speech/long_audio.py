"""Recordings of any length: heard in overlapping windows, written as one text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
import torch

from magneto.speech.batching import SpeechVocabulary, heard_frames, pad_features
from magneto.speech.config import SUBSAMPLING, SpeechDataConfig
from magneto.speech.decoding import Hypothesis, Search
from magneto.speech.features import SpeechFeatures
from magneto.speech.model import Transducer


@dataclass(frozen=True)
class Word:
    """A word of a transcript.

    Attributes:
        text: Without spaces.
        start: When its first label was emitted, in seconds; a transducer may be late by some tenths
            of a second.
        end: When the frame of its last label ends.
    """

    text: str
    start: float
    end: float

    @property
    def middle(self) -> float:
        """Between start and end."""
        return (self.start + self.end) / 2


def timed_words(
    hypothesis: Hypothesis, vocabulary: SpeechVocabulary, seconds: float, start: float = 0.0
) -> list[Word]:
    """Return the words of a hypothesis.

    It works with any tokenizer: what each label adds is seen by decoding the labels up to it.

    Args:
        hypothesis: What was found.
        vocabulary: Of its labels.
        seconds: Of one of the encoder's frames.
        start: Of the first frame, in seconds.
    """
    texts = vocabulary.decode(hypothesis.labels).split()
    spans: list[list[int]] = [[] for _ in texts]
    before = 0
    for number, frame in enumerate(hypothesis.frames, 1):
        words = vocabulary.decode(hypothesis.labels[:number]).split()
        size = sum(map(len, words))
        if words and size != before:  # a space alone belongs to no word
            spans[min(len(words), len(texts)) - 1].append(frame)
        before = size
    found, last = [], 0
    for text, span in zip(texts, spans, strict=True):
        # A word that no label completed (bytes that were replaced) has its neighbour's frame.
        first, last = (span[0], span[-1]) if span else (last, last)
        found.append(Word(text, start + first * seconds, start + (last + 1) * seconds))
    return found


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
        ready = list(takewhile(lambda word: last or word.middle < settled, found))
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
            (one, other): abs(before[one].middle + after[other].middle - 2 * middle)
            for one, other in pairs
        }
        one, other = min(pairs, key=off.__getitem__)
        return list(before[: one + 1]), list(after[other + 1 :])
    kept = [word for word in before if word.middle < middle]
    end = kept[-1].end if kept else start
    return kept, [word for word in after if word.middle >= max(middle, end)]


def common_words(
    before: Sequence[Word], after: Sequence[Word], start: float, stop: float
) -> list[tuple[int, int]]:
    """Return pairs of equal words at about the same time, by number, in order.

    Of all such sequences it is that of the most and nearest pairs: a word that is said several
    times in a row is to meet itself. One window ends at `stop`, the other begins at `start`.
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
    return max(1 - abs(one.middle - other.middle) / TOLERANCE, 0.0)


@dataclass(frozen=True)
class Transcribed:
    """Words that are settled of a recording.

    Attributes:
        recording: Number of the recording.
        words: That follow those of before.
        seconds: How much of it was heard.
        last: Whether it ends here.
        texts: Where it was heard at once, all that the search found, with scores, the best first:
            log-probabilities in nats.
    """

    recording: int
    words: list[Word]
    seconds: float
    last: bool
    texts: list[tuple[str, float]]


class Transcriber:
    """Turns sound into words.

    Args:
        model: In evaluation mode.
        vocabulary: Of its labels.
        data: What its features are like, with what the run keeps.
        search: How labels are found.
        window: Seconds that the model hears at once. It should have been trained on such lengths.
        overlap: Seconds that a window has in common with the next, at most half of it.
        batch_size: Windows that are decoded together.

    Attributes:
        least_seconds: Of which there is a frame; of less nothing is heard.

    Raises:
        ValueError: If windows don't overlap so.
    """

    def __init__(
        self,
        model: Transducer,
        vocabulary: SpeechVocabulary,
        data: SpeechDataConfig,
        search: Search,
        window: float,
        overlap: float,
        batch_size: int = 8,
    ) -> None:
        if not 0 < overlap <= window / 2:
            raise ValueError(f"an overlap of {overlap:g} s must be above 0 and at most half of the "
                             f"window, {window:g} s")  # fmt: skip
        self.model, self.vocabulary, self.search = model, vocabulary, search
        self.rate, self.batch_size = data.sample_rate, batch_size
        self.features = SpeechFeatures(data)
        self.size, self.overlap = round(window * self.rate), round(overlap * self.rate)
        bank = self.features.filter_bank
        self.least_seconds = bank.window / self.rate
        self.frame_seconds = SUBSAMPLING * bank.shift_seconds

    def transcribe(self, recordings: Sequence[Iterable[np.ndarray]]) -> Iterator[Transcribed]:
        """Yield the words of recordings as they are settled, one recording after another.

        Args:
            recordings: Each as samples at the data's rate, in pieces of any size.
        """
        windows = (
            (number, window)
            for number, pieces in enumerate(recordings)
            for window in cut_windows(pieces, self.size, self.overlap)
        )
        joined: dict[int, JoinedWords] = {}
        while batch := list(islice(windows, self.batch_size)):
            found = self.hypotheses([window for _, window in batch])
            for (number, window), best in zip(batch, found, strict=True):
                whole = joined.setdefault(number, JoinedWords(self.overlap / self.rate))
                start, stop = window.start, window.start + len(window.samples)
                seconds = self.frame_seconds
                words = timed_words(best[0], self.vocabulary, seconds, start / self.rate)
                ready = whole.add(words, start / self.rate, stop / self.rate, window.last)
                alone = window.last and start == 0
                texts = [(self.vocabulary.decode(h.labels), h.score) for h in best if alone]
                if window.last:
                    del joined[number]
                yield Transcribed(number, ready, stop / self.rate, window.last, texts)

    def hypotheses(self, windows: Sequence[Window]) -> list[list[Hypothesis]]:
        """Return what the search finds in windows."""
        features = [self.features(window.samples) for window in windows]
        padded = pad_features(features, self.model.config.mel_bins)
        frames = torch.tensor([heard_frames(len(each)) for each in features])
        device = next(self.model.parameters()).device
        with torch.no_grad():
            encoded, lengths = self.model.encode(padded.to(device), frames.to(device))
            return self.search(self.model, encoded, lengths)
