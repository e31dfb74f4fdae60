"""Sparse targets against what each question's annotators said."""

import numpy as np

from magneto.vision.decoding import Pixels
from magneto.vision_language.question_answering.questions import (
    Question,
    QuestionSplit,
    with_one_answer,
)
from magneto.vision_language.question_answering.targets import gather_targets

STORE = Pixels(np.zeros((1, 4, 4, 3), np.uint8))


def test_dense_targets() -> None:
    questions = [
        with_one_answer(1, 0, "a?", "yes"),
        Question(2, 0, "b?", ("no",) * 3 + ("yes",) + ("x",) * 6),
        with_one_answer(3, 0, "c?", "never heard of"),
        Question(4, 0, "d?"),
    ]
    found = gather_targets(QuestionSplit(STORE, questions), ["no", "yes"], "raw")
    assert np.allclose(found.dense([0, 1, 2, 3]), [[0, 1], [0.9, 0.3], [0, 0], [0, 0]])
    assert np.allclose(found.dense([1]), [[0.9, 0.3]])
    assert found.known.tolist() == [True, True, False, False]
    assert np.allclose(found.means(), [0.9 / 4, 1.3 / 4])
