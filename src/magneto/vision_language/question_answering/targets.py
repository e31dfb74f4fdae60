"""What each question teaches: a target for every known answer, nearly all of them 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magneto.vision_language.question_answering.answers import Lookup, soft_target
from magneto.vision_language.question_answering.questions import QuestionSplit


@dataclass(frozen=True)
class Targets:
    """Targets of a split's questions; only those above 0 are kept.

    Attributes:
        starts: Where each question's begin, and where the last ends, int64 (questions + 1,).
        numbers: Of the answers, int64.
        credits: Above 0 and at most 1, float32.
        size: How many answers there are.
    """

    starts: np.ndarray
    numbers: np.ndarray
    credits: np.ndarray
    size: int

    @property
    def known(self) -> np.ndarray:
        """Whether each question has a known answer, boolean (questions,)."""
        return np.diff(self.starts) > 0

    def dense(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the targets of some questions, float32 (rows, size)."""
        found = np.zeros((len(rows), self.size), np.float32)
        for place, row in enumerate(rows):
            part = slice(self.starts[row], self.starts[row + 1])
            found[place, self.numbers[part]] = self.credits[part]
        return found

    def means(self) -> np.ndarray:
        """Return each answer's mean target over the questions, float64 (size,)."""
        sums = np.bincount(self.numbers, self.credits, minlength=self.size)
        return sums / max(len(self.starts) - 1, 1)


def gather_targets(split: QuestionSplit, answers: Sequence[str], lookup: Lookup) -> Targets:
    """Return the targets of a split.

    Args:
        split: Of questions.
        answers: That are known, in the order of their numbers.
        lookup: How the annotators' answers are looked up among them.
    """
    order = {answer: number for number, answer in enumerate(answers)}
    found = [soft_target(question.answers, order, lookup) for question in split.questions]
    starts = np.cumsum([0, *map(len, found)], dtype=np.int64)
    numbers = np.array([number for one in found for number in one], np.int64)
    credits = np.array([credit for one in found for credit in one.values()], np.float32)
    return Targets(starts, numbers, credits, len(answers))
