"""Transcription of recordings of any length in overlapping windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
import torch

from magneto.speech.batching import SpeechVocabulary, pad_features, padded_frames
from magneto.speech.config import SUBSAMPLING, SpeechDataConfig
from magneto.speech.decoding import Hypothesis, Search
from magneto.speech.features import SpeechFeatures
from magneto.speech.model import Transducer


@dataclass(frozen=True)
class Word:
    """Word of a transcript with its time.

    Attributes:
        text: Word without spaces.
        start: Time of the word's first label in seconds. The label may come some tenths of a second
            after the sound.
        end: End of the frame of the word's last label, in seconds.
    """

    text: str
    start: float
    end: float

    @property
    def middle(self) -> float:
        """Time halfway between start and end, in seconds."""
        return (self.start + self.end) / 2


def timed_words(
    hypothesis: Hypothesis, vocabulary: SpeechVocabulary, seconds: float, start: float = 0.0
) -> list[Word]:
    """Return the words of a hypothesis with their times.

    An encoder frame lasts `seconds` seconds. The first frame begins at `start` seconds.
    """
    texts = vocabulary.decode(hypothesis.labels).split()
    spans: list[list[int]] = [[] for _ in texts]
    before = 0
    for number, frame in enumerate(hypothesis.frames, 1):
        words = vocabulary.decode(hypothesis.labels[:number]).split()
        size = sum(map(len, words))
        # A space belongs to no word. Its first bytes alone may look like a word.
        if words and texts and size != before:
            spans[min(len(words), len(texts)) - 1].append(frame)
        before = size
    found, last = [], 0
    for text, span in zip(texts, spans, strict=True):
        # A word without labels (of replaced bytes) takes its neighbour's frame.
        first, last = (span[0], span[-1]) if span else (last, last)
        found.append(Word(text, start + first * seconds, start + (last + 1) * seconds))
    return found


# Overlap of neighbouring windows as a share of a window.
OVERLAP = 0.2
# Largest time difference, in seconds, at which equal words in two windows are the same word.
TOLERANCE = 0.6
# Words this near to the edge of a window, in seconds, may be cut.
EDGE = 0.1


@dataclass(frozen=True)
class Window:
    """Window of a recording.

    Attributes:
        start: Index of the window's first sample in the recording.
        samples: Mono samples, float32.
        last: Whether this is the recording's last window.
    """

    start: int
    samples: np.ndarray
    last: bool


def split_windows(pieces: Iterable[np.ndarray], size: int, overlap: int) -> Iterator[Window]:
    """Cut a stream of samples into windows of `size` samples that overlap by `overlap` samples.

    Yields:
        At least one window. The last window may have fewer samples than `size`.
    """
    held, start = np.zeros(0, np.float32), 0
    for piece in pieces:
        held = np.concatenate((held, piece))
        # A further sample shows that this window is not the last.
        while len(held) > size:
            yield Window(start, held[:size], False)
            held, start = held[size - overlap :], start + size - overlap
    yield Window(start, held, True)


def merge_words(
    before: Sequence[Word], after: Sequence[Word], start: float, stop: float
) -> list[Word]:
    """Merge the words of two windows that overlap from `start` to `stop` seconds.

    The texts are joined at the common word nearest to the middle of the overlap. If the texts have
    no common word, the texts are joined at the middle of the overlap.
    """
    middle = (start + stop) / 2

    def distance(pair: tuple[int, int]) -> float:
        return abs((before[pair[0]].middle + after[pair[1]].middle) / 2 - middle)

    if pairs := align_words(before, after, start, stop):
        one, other = min(pairs, key=distance)
        return [*before[: one + 1], *after[other + 1 :]]
    kept = [word for word in before if word.middle < middle]
    end = kept[-1].end if kept else start
    return kept + [word for word in after if word.middle >= max(middle, end)]


def add_window(
    pending: list[Word], words: list[Word], start: float, stop: float, overlap: float, last: bool
) -> tuple[list[Word], list[Word]]:
    """Return words that can no longer change, and words that the next window can change.

    `words` are the words of a window from `start` to `stop` seconds. `pending` are words of earlier
    windows that can still change. Windows overlap by `overlap` seconds.
    """
    if start > 0:
        words = merge_words(pending, words, start, start + overlap)
    limit = stop - overlap - 2 * TOLERANCE
    final = list(takewhile(lambda word: last or word.middle < limit, words))
    return final, words[len(final) :]


def align_words(
    before: Sequence[Word], after: Sequence[Word], start: float, stop: float
) -> list[tuple[int, int]]:
    """Match the words of two overlapping windows; return pairs of indices, in order of time.

    Two words form a pair if the texts are equal and the times differ little. If a word is repeated,
    the alignment prefers pairs with a small time difference. The windows overlap from `start` to
    `stop` seconds.
    """
    rows = [n for n, word in enumerate(before) if word.start > start - TOLERANCE
            and word.end < stop - EDGE]  # fmt: skip
    columns = [n for n, word in enumerate(after) if word.start > start + EDGE
               and word.end < stop + TOLERANCE]  # fmt: skip
    near = np.array([[_nearness(before[i], after[j]) for j in columns] for i in rows])
    # best[i, j]: score of the best alignment of the words from i and from j on.
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
    if one.text.casefold() != other.text.casefold():
        return 0.0
    return max(1 - abs(one.middle - other.middle) / TOLERANCE, 0.0)


@dataclass(frozen=True)
class TranscriptPart:
    """Part of a recording's transcript: the words after the previous part.

    Attributes:
        recording: Index of the recording.
        words: Words of this part.
        seconds: Seconds of the recording that have been processed so far.
        last: Whether this is the recording's last part.
        texts: Hypotheses and log-probabilities in nats, best first. The list is empty if the
            recording is longer than one window.
    """

    recording: int
    words: list[Word]
    seconds: float
    last: bool
    texts: list[tuple[str, float]]


class Transcriber:
    """Transcriber of recordings.

    Args:
        model: Transducer in evaluation mode.
        vocabulary: Vocabulary of the model's labels.
        data: Data configuration of the model's run. `cmvn` must not be "global".
        search: Search method, greedy or beam search.
        window: Length of a window in seconds, such as a typical duration of training utterances.
        batch_size: Number of windows per batch.

    Attributes:
        least_seconds: Length of a feature frame in seconds. A recording shorter than a frame gets
            an empty transcript.

    Raises:
        ValueError: If the window is shorter than a feature frame.
    """

    def __init__(
        self,
        model: Transducer,
        vocabulary: SpeechVocabulary,
        data: SpeechDataConfig,
        search: Search,
        window: float,
        batch_size: int = 8,
    ) -> None:
        self.model, self.vocabulary, self.search = model, vocabulary, search
        self.rate, self.batch_size = data.sample_rate, batch_size
        self.features = SpeechFeatures(data)
        self.size, self.overlap = round(window * self.rate), round(OVERLAP * window * self.rate)
        bank = self.features.filter_bank
        self.least_seconds = bank.window / self.rate
        if self.size < bank.window:
            raise ValueError(f"the window ({window:g} s) must be at least a feature frame "
                             f"({self.least_seconds:g} s)")  # fmt: skip
        self.frame_seconds = SUBSAMPLING * bank.shift_seconds

    def transcribe(self, recordings: Sequence[Iterable[np.ndarray]]) -> Iterator[TranscriptPart]:
        """Yield the parts of each transcript, one recording after another.

        Each recording is an iterable of arrays of mono samples at `data.sample_rate`.
        """
        windows = (
            (number, window)
            for number, pieces in enumerate(recordings)
            for window in split_windows(pieces, self.size, self.overlap)
        )
        overlap, pending = self.overlap / self.rate, list[Word]()
        while batch := list(islice(windows, self.batch_size)):
            hypotheses = self.hypotheses([window for _, window in batch])
            for (number, window), best in zip(batch, hypotheses, strict=True):
                start = window.start / self.rate
                stop = (window.start + len(window.samples)) / self.rate
                words = timed_words(best[0], self.vocabulary, self.frame_seconds, start)
                final, pending = add_window(pending, words, start, stop, overlap, window.last)
                single = window.last and start == 0
                texts = [(self.vocabulary.decode(h.labels), h.score) for h in best if single]
                yield TranscriptPart(number, final, stop, window.last, texts)

    def hypotheses(self, windows: Sequence[Window]) -> list[list[Hypothesis]]:
        features = [self.features(window.samples) for window in windows]
        padded = pad_features(features, self.model.config.mel_bins)
        frames = torch.tensor([padded_frames(len(each)) for each in features])
        device = next(self.model.parameters()).device
        with torch.no_grad():
            encoded, lengths = self.model.encode(padded.to(device), frames.to(device))
            return self.search(self.model, encoded, lengths)
