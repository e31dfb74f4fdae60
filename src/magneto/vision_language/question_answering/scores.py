"""Scores of the answers that a model gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magneto.vision_language.question_answering.metric import (
    When,
    mean_by_kind,
    question_accuracy,
)
from magneto.vision_language.question_answering.questions import Question

NO_ANSWER = -1
"""In place of an answer's number where the image could not be read: it scores 0."""


def answer_scores(
    questions: Sequence[Question], given: Sequence[str | None], when: When
) -> dict[str, float]:
    """Return the official accuracy of all questions, and of each type of answer.

    Args:
        questions: With annotators' answers; without them there is nothing to score.
        given: An answer to each; None scores 0.
        when: Answers are normalised.
    """
    scores = [
        0.0 if answer is None else question_accuracy(answer, question.answers, when)
        for question, answer in zip(questions, given, strict=True)
    ]
    kinds = [question.answer_type.replace("/", "_") for question in questions]
    by_kind = mean_by_kind(zip(kinds, scores, strict=True))
    named = {f"accuracy_{kind}": value for kind, value in by_kind.items() if kind}
    return {"accuracy": float(np.mean(scores)), **named}


def summary(
    sums: Mapping[str, Any],
    questions: Sequence[Question],
    given: Sequence[str | None],
    when: When,
) -> dict[str, float]:
    """Return the metrics of scored questions.

    "soft_score" is what BEiT-3's released code validates by: the target of the answer that was
    given, which depends on how answers are looked up. "unknown" is the share of questions for which
    every known answer scores 0 by this metric: nobody can answer them out of the list.

    Args:
        sums: Of "loss", "soft_score", "unknown", "broken" and "count".
        questions: That were asked.
        given: An answer to each, or None.
        when: Answers are normalised.
    """
    count = sums["count"]
    if not any(question.answers for question in questions):
        return {"questions": float(count), "broken": sums["broken"]}
    shares = {name: sums[name] / count for name in ("loss", "soft_score", "unknown")}
    return {**answer_scores(questions, given, when), **shares, "broken": sums["broken"]}
