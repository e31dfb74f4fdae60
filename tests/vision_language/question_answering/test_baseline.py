"""What who sees no image answers, by hand."""

import numpy as np
import pytest

from magneto.vision_language.question_answering.baseline import commonest_answers, mean_loss
from magneto.vision_language.question_answering.questions import QuestionSplit, with_one_answer
from magneto.vision_language.question_answering.targets import gather_targets
from tests.vision_language.question_answering.test_targets import STORE

ROWS = [("a?", "no"), ("a?", "yes"), ("a?", "yes"), ("b?", "no"), ("b?", "maybe"), ("c?", "yes")]


def test_the_commonest_answer_to_the_same_words() -> None:
    """To words that were never asked: the commonest of all; of several, the first."""
    questions = [with_one_answer(i, 0, text, answer) for i, (text, answer) in enumerate(ROWS)]
    split, answers = QuestionSplit(STORE, questions), ["maybe", "no", "yes"]
    asked = [with_one_answer(9, 0, text, "no") for text in ("a?", "b?", "new?")]
    found = commonest_answers(split, gather_targets(split, answers, "raw"), asked)
    assert [answers[number] for number in found] == ["yes", "maybe", "yes"]


def test_the_loss_of_the_mean_targets() -> None:
    means, targets = np.array([0.5, 0.25]), np.array([[1.0, 0.0], [0.0, 0.3]])
    likely = -np.log(0.5) - np.log(0.75) - np.log(0.5) - 0.3 * np.log(0.25) - 0.7 * np.log(0.75)
    assert mean_loss(means, targets) == pytest.approx(likely)
