"""Scores of given answers, by hand."""

import pytest

from magneto.vision_language.question_answering.questions import Question, with_one_answer
from magneto.vision_language.question_answering.scores import answer_scores, summary

QUESTIONS = [
    with_one_answer(1, 0, "is it?", "yes"),
    with_one_answer(2, 0, "how many?", "two"),
    Question(3, 0, "what?", ("dog",) * 2 + ("The cat",) * 8, "cat", "what", "other"),
]


def test_accuracy_by_type() -> None:
    given = ["yes", "2", "dog"]
    found = answer_scores(QUESTIONS, given, "where_annotators_disagree")
    assert found == pytest.approx(
        {"accuracy": 1.6 / 3, "accuracy_number": 0, "accuracy_other": 0.6, "accuracy_yes_no": 1}
    )
    assert answer_scores(QUESTIONS, given, "always")["accuracy_number"] == 1
    assert answer_scores(QUESTIONS, [None, None, "cat"], "always")["accuracy"] == pytest.approx(
        1 / 3
    )


def test_summary() -> None:
    sums = {"loss": 6.0, "soft_score": 1.5, "unknown": 1, "broken": 2, "count": 3}
    found = summary(sums, QUESTIONS, ["yes", None, None], "always")
    assert found["loss"] == 2 and found["soft_score"] == 0.5 and found["broken"] == 2
    assert found["unknown"] == pytest.approx(1 / 3) and found["accuracy"] == pytest.approx(1 / 3)
    unanswered = [Question(4, 0, "where?")]
    assert summary({**sums, "count": 1}, unanswered, ["x"], "always") == {
        "questions": 1, "broken": 2,
    }  # fmt: skip
