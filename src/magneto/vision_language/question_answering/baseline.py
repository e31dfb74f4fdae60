"""What who reads the questions and sees no image reaches: the least that a model has to beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from magneto.vision_language.question_answering.data import PreparedQuestions
from magneto.vision_language.question_answering.metric import When
from magneto.vision_language.question_answering.questions import Question, QuestionSplit
from magneto.vision_language.question_answering.scores import summary
from magneto.vision_language.question_answering.targets import Targets

# Questions whose targets are made at a time.
PIECE = 1024


def text_only_scores(found: PreparedQuestions, rows: np.ndarray, when: When) -> dict[str, float]:
    """Return the metrics of answering by the words of a question alone.

    The answer is the commonest to training questions of the same words; the loss is that of the
    mean targets, whatever the question.

    Args:
        found: The questions.
        rows: Numbers of the validation questions to answer.
        when: Answers are normalised.
    """
    asked = [found.validation.questions[row] for row in rows]
    numbers = commonest_answers(found.train, found.train_targets, asked)
    means = found.train_targets.means()
    unknown = float((~found.answerable[rows]).sum())
    sums = {"loss": 0.0, "soft_score": 0.0, "unknown": unknown}
    for start in range(0, len(rows), PIECE):
        targets = found.validation_targets.dense(rows[start : start + PIECE])
        chosen = numbers[start : start + PIECE]
        sums["loss"] += mean_loss(means, targets)
        sums["soft_score"] += float(targets[np.arange(len(targets)), chosen].sum())
    given = [found.answers[number] for number in numbers]
    return summary({**sums, "broken": 0, "count": len(rows)}, asked, given, when)


def commonest_answers(
    train: QuestionSplit, targets: Targets, asked: Sequence[Question]
) -> np.ndarray:
    """Return what a guesser answers who reads the question and sees no image, int64 (asked,).

    It is the answer with the most credit among training questions of the same words; among all of
    them where there are none. Of several, the first.
    """
    by_text: dict[str, Counter[int]] = {}
    total: Counter[int] = Counter()
    for row, question in enumerate(train.questions):
        part = slice(targets.starts[row], targets.starts[row + 1])
        credit = dict(zip(targets.numbers[part].tolist(), targets.credits[part].tolist(),
                          strict=True))  # fmt: skip
        by_text.setdefault(question.text, Counter()).update(credit)
        total.update(credit)
    best = {text: best_number(counts) for text, counts in by_text.items()}
    overall = best_number(total)
    return np.array([best.get(question.text, overall) for question in asked], np.int64)


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
