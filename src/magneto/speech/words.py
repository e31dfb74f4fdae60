"""Words with their times, from labels and the frames at which they were emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magneto.speech.decoding import Hypothesis
from magneto.speech.vocabulary import SpeechVocabulary


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
    return [
        Word(text, start + span[0] * seconds, start + (span[-1] + 1) * seconds)
        for text, span in zip(texts, _filled(spans), strict=True)
    ]


def _filled(spans: Sequence[list[int]]) -> list[list[int]]:
    """Give a word that no label completed (bytes that were replaced) its neighbour's frame."""
    found: list[list[int]] = []
    for span in spans:
        found.append(span or [found[-1][-1] if found else 0])
    return found
