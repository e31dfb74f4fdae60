"""The answers that a model chooses from, and what of each answer it is taught.

VQA v2's 3129 are the majority answers, normalised, that occur nine times or more in training and
validation annotations together, in the order in which they first occur: so the rows of a released
checkpoint's head are the rows of ours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from magneto.data.files import existing_path
from magneto.data.problems import guarded
from magneto.vision_language.answer_accuracy import normalise_answer

Lookup = Literal["raw", "normalised"]
"""How an annotator's answer is looked up among the known ones: as it is written, as BEiT-3's
released code does, although the known ones are normalised; or normalised too."""
ANNOTATORS = 10
"""A question with one answer counts as answered by so many who agree."""

# Target of an answer by the number of annotators who gave it: the accuracy it would have.
CREDIT = (0.0, 0.3, 0.6, 0.9, 1.0)


def known_answers(majorities: Iterable[str], least: int) -> list[str]:
    """Return the answers to choose from, in the order in which they first occur.

    Args:
        majorities: The majority answer of each annotated question.
        least: Times that an answer occurs, normalised (9 for VQA v2, which gives 3129).
    """
    counts = Counter(normalise_answer(answer) for answer in majorities)
    return [answer for answer, count in counts.items() if count >= least]


def soft_target(
    annotators: Sequence[str], numbers: Mapping[str, int], lookup: Lookup
) -> dict[int, float]:
    """Return the known answers' targets for one question; those that are not listed have 0.

    Args:
        annotators: The answers of all annotators.
        numbers: Of the known answers.
        lookup: How they are looked up.
    """
    written = annotators if lookup == "raw" else [normalise_answer(one) for one in annotators]
    counts = Counter(written)
    return {
        numbers[answer]: CREDIT[min(count, len(CREDIT) - 1)]
        for answer, count in counts.items()
        if answer in numbers
    }


def share_known(
    questions: Iterable[Sequence[str]], numbers: Mapping[str, int], lookup: Lookup
) -> float:
    """Return the share of annotators' answers that are known; 0 of none."""
    known = total = 0
    for annotators in questions:
        total += len(annotators)
        written = annotators if lookup == "raw" else map(normalise_answer, annotators)
        known += sum(answer in numbers for answer in written)
    return known / max(total, 1)


def read_answers(name: str) -> list[str]:
    """Read the answers to choose from, in order.

    Args:
        name: Path of a JSON list, as a run keeps it; of text with an answer in each line; or of
            lines of JSON with "answer" and "label" (BEiT-3's answer2label.txt).

    Raises:
        FileNotFoundError: If there is no such file; names the nearest.
        ValueError: If it holds no answers, one twice, or labels out of order.
    """
    path = existing_path(name)
    with guarded(prefix=f"{path} is no list of answers: "):
        text = path.read_text(encoding="utf-8-sig")
        found = json.loads(text) if text.lstrip().startswith("[") else _lines(text)
    if not found or not all(isinstance(answer, str) for answer in found):
        raise ValueError(f"{path} is no list of answers")
    twice = [answer for answer, count in Counter(found).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has the answer {twice[0]!r} twice")
    return found


def _lines(text: str) -> list[Any]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("{"):
        return lines
    rows = [json.loads(line) for line in lines]
    if not all({"answer", "label"} <= row.keys() for row in rows):
        raise ValueError('a line has no "answer" and "label"')
    if [int(row["label"]) for row in rows] != list(range(len(rows))):
        raise ValueError("its labels are not 0, 1, 2 and so on")
    return [row["answer"] for row in rows]


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


def gather_targets(
    questions: Sequence[Sequence[str]], answers: Sequence[str], lookup: Lookup
) -> Targets:
    """Return the targets of questions: one for every known answer, nearly all of them 0.

    Args:
        questions: The annotators' answers to each.
        answers: That are known, in the order of their numbers.
        lookup: How the annotators' answers are looked up among them.
    """
    order = {answer: number for number, answer in enumerate(answers)}
    found = [soft_target(annotators, order, lookup) for annotators in questions]
    starts = np.cumsum([0, *map(len, found)], dtype=np.int64)
    numbers = np.array([number for one in found for number in one], np.int64)
    credits = np.array([credit for one in found for credit in one.values()], np.float32)
    return Targets(starts, numbers, credits, len(answers))


def commonest_answers(texts: Sequence[str], targets: Targets, asked: Sequence[str]) -> np.ndarray:
    """Return what a guesser answers who reads the question and sees no image, int64 (asked,).

    It is the answer with the most credit among training questions of the same words; among all of
    them where there are none. Of several, the first.

    Args:
        texts: Of the training questions.
        targets: Of these.
        asked: The questions to answer.
    """
    by_text: dict[str, Counter[int]] = {}
    total: Counter[int] = Counter()
    for row, text in enumerate(texts):
        part = slice(targets.starts[row], targets.starts[row + 1])
        credit = dict(zip(targets.numbers[part].tolist(), targets.credits[part].tolist(),
                          strict=True))  # fmt: skip
        by_text.setdefault(text, Counter()).update(credit)
        total.update(credit)
    best = {text: best_number(counts) for text, counts in by_text.items()}
    overall = best_number(total)
    return np.array([best.get(text, overall) for text in asked], np.int64)


def best_number(credit: Mapping[int, float]) -> int:
    """Return the number with the most credit, the smallest of several."""
    return min(credit, key=lambda number: (-credit[number], number))


def mean_loss(means: np.ndarray, targets: np.ndarray) -> float:
    """Return the summed binary cross-entropy of answering every question with the mean targets.

    Args:
        means: Of training, (answers,).
        targets: Of the questions asked, (questions, answers).
    """
    likely = means.clip(1e-6, 1 - 1e-6)
    return float(-(targets * np.log(likely) + (1 - targets) * np.log(1 - likely)).sum())
