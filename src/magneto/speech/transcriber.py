"""Transcribe recordings of any length: read in windows, decode some together, join their words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from magneto.speech.batching import MIN_FRAMES, heard_frames
from magneto.speech.config import SpeechDataConfig
from magneto.speech.decoding import Hypothesis, Search
from magneto.speech.features import SpeechFeatures
from magneto.speech.model import Transducer
from magneto.speech.transducer_config import SUBSAMPLING
from magneto.speech.vocabulary import SpeechVocabulary
from magneto.speech.windows import JoinedWords, Window, cut_windows
from magneto.speech.words import Word, timed_words


@dataclass(frozen=True)
class Transcribed:
    """Words that are settled of a recording.

    Attributes:
        recording: Number of the recording.
        words: That follow those of before.
        seconds: How much of it was heard.
        last: Whether it ends here.
    """

    recording: int
    words: list[Word]
    seconds: float
    last: bool


@dataclass(frozen=True)
class NBest:
    """The hypotheses of a recording that was heard at once.

    Attributes:
        texts: With their scores, the best first: log-probabilities in nats.
        words: Of the best.
        seconds: How long the recording is.
    """

    texts: list[tuple[str, float]]
    words: list[Word]
    seconds: float


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
            found = self.hear([window for _, window in batch])
            for (number, window), words in zip(batch, found, strict=True):
                whole = joined.setdefault(number, JoinedWords(self.overlap / self.rate))
                start, stop = window.start, window.start + len(window.samples)
                ready = whole.add(words, start / self.rate, stop / self.rate, window.last)
                if window.last:
                    del joined[number]
                yield Transcribed(number, ready, stop / self.rate, window.last)

    def hear(self, windows: Sequence[Window]) -> list[list[Word]]:
        """Return the words of windows, with times of their recordings."""
        found = self.hypotheses(windows)
        return [self.words(best[0], w) for w, best in zip(windows, found, strict=True)]

    def n_best(self, recordings: Sequence[Iterable[np.ndarray]]) -> Iterator[NBest]:
        """Yield the hypotheses of recordings, each heard at once, as many as the search returns.

        Args:
            recordings: Each as samples at the data's rate, in pieces of any size.

        Raises:
            ValueError: If one is longer than a window.
        """
        windows = (next(cut_windows(each, self.size, self.overlap)) for each in recordings)
        while batch := list(islice(windows, self.batch_size)):
            if not all(window.last for window in batch):
                raise ValueError(f"n-best lists are of recordings that are heard at once: of at "
                                 f"most {self.size / self.rate:g} s, a window")  # fmt: skip
            for window, found in zip(batch, self.hypotheses(batch), strict=True):
                texts = [(self.vocabulary.decode(each.labels), each.score) for each in found]
                yield NBest(texts, self.words(found[0], window), len(window.samples) / self.rate)

    def words(self, hypothesis: Hypothesis, window: Window) -> list[Word]:
        """Return the words of a hypothesis, with times of its window's recording."""
        start = window.start / self.rate
        return timed_words(hypothesis, self.vocabulary, self.frame_seconds, start)

    def hypotheses(self, windows: Sequence[Window]) -> list[list[Hypothesis]]:
        """Return what the search finds in windows."""
        features = [self.features(window.samples) for window in windows]
        padded, lengths = self._padded(features)
        with torch.no_grad():
            encoded, lengths = self.model.encode(padded, lengths)
            return self.search(self.model, encoded, lengths)

    def _padded(self, features: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        device = next(self.model.parameters()).device
        longest = max(MIN_FRAMES, *map(len, features))
        padded = torch.zeros(len(features), longest, self.model.config.mel_bins)
        for row, each in enumerate(features):
            padded[row, : len(each)] = torch.from_numpy(np.ascontiguousarray(each, np.float32))
        lengths = [heard_frames(len(each)) for each in features]
        return padded.to(device), torch.tensor(lengths, device=device)
