"""Answers: the official accuracy by hand, those to choose from, and what of each is taught."""

import random
from pathlib import Path

import numpy as np
import pytest

from magneto.vision_language.answers import (
    When,
    answer_scores,
    answerable,
    gather_targets,
    question_accuracy,
    question_only_answers,
    read_answers,
    share_known,
)

WHENS: tuple[When, When] = ("where_annotators_disagree", "always")


def test_whether_any_known_answer_is_right() -> None:
    """As trying them all one by one says, and raw spelling does not keep an answer from it."""
    known, draw = ["2", "dog", "two dogs", "a cat", "t-shirt"], random.Random(0)
    said = ["two", "2", "couple", "Dog", "the dog", "dog", "2 dogs", "cat", "T-Shirt", "x", "dog\n"]
    asked = [["two"] * 6 + ["couple"] * 4, ["two"] * 10, ["2"] * 10, ["2"], [], ["x", "2"]]
    asked += [draw.choices(said, k=draw.choice([1, 2, 3, 10])) for _ in range(500)]
    for when in WHENS:
        tried = [any(question_accuracy(one, said, when) > 0 for one in known) for said in asked]
        assert list(answerable(asked, known, when)) == tried
        assert tried[:6] == [True, when == "always", True, False, False, True]


def test_accuracy_by_type() -> None:
    answers = [("yes",) * 10, ("two",) * 10, ("dog",) * 2 + ("The cat",) * 8]
    types = ["yes/no", "number", "other"]
    found = answer_scores(answers, types, ["yes", "2", "dog"], "where_annotators_disagree")
    assert found == pytest.approx(
        {"accuracy": 1.6 / 3, "accuracy_number": 0, "accuracy_other": 0.6, "accuracy_yes_no": 1}
    )
    none = answer_scores(answers, types, [None, None, "cat"], "always")
    assert none["accuracy"] == pytest.approx(1 / 3)


def test_targets_by_how_many_agree() -> None:
    """By the raw look-up, as in the released code, "none" and "Two" are not "0" and "2"."""
    questions = [("a",) * 4 + ("b",) * 3 + ("c",) * 2 + ("d",), ("x",) * 10, ()]
    found = gather_targets(questions, ["d", "c", "b", "a"], "raw")
    assert np.allclose(found.dense([1, 0, 2]), [[0] * 4, [0.3, 0.6, 0.9, 1], [0] * 4])
    assert found.known.tolist() == [True, False, False]
    assert np.allclose(found.means(), np.array([0.3, 0.6, 0.9, 1]) / 3)
    spelt = ("none",) * 5 + ("2",) * 3 + ("two", "Two")
    for lookup, targets, share in (("raw", [0, 0.9], 0.3), ("normalised", [1, 1], 1.0)):
        found = gather_targets([spelt], ["0", "2"], lookup)  # type: ignore[arg-type]
        assert np.allclose(found.dense([0]), targets)
        assert share_known([spelt], ["0", "2"], lookup) == share  # type: ignore[arg-type]
    assert share_known([spelt, ("x",) * 10], ["0", "2"], "normalised") == 0.5
    assert share_known([], ["0"], "raw") == 0


def test_files_of_answers(tmp_path: Path) -> None:
    """A byte order mark is no part of an answer."""
    path = tmp_path / "answers"
    for text in ("red\nblue\n\n", '["red", "blue"]',
                 '{"answer": "red", "label": 0}\n{"answer": "blue", "label": 1}\n'):  # fmt: skip
        for encoding in ("utf-8", "utf-8-sig"):
            path.write_text(text, encoding=encoding)
            assert read_answers(str(path)) == ["red", "blue"]
    for text, message in (
        ("", "is not an answer list"), ("[", "is not an answer list"),
        ("red\nred\n", "has the answer 'red' twice"),
        ('{"answer": "red", "label": 1}', "labels are not 0, 1, 2"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_answers(str(path))
    with pytest.raises(FileNotFoundError, match=r"answer.*did you mean"):
        read_answers(str(tmp_path / "answer"))


def test_the_commonest_answer_to_the_same_words() -> None:
    """To words that were never asked: the commonest of all; of several, the first."""
    rows = [("a?", "no"), ("a?", "yes"), ("a?", "yes"), ("b?", "no"), ("b?", "maybe"),
            ("c?", "yes")]  # fmt: skip
    texts, answers = [text for text, _ in rows], ["maybe", "no", "yes"]
    targets = gather_targets([(said,) * 10 for _, said in rows], answers, "raw")
    found = question_only_answers(texts, targets, ["a?", "b?", "new?"])
    assert [answers[number] for number in found] == ["yes", "maybe", "yes"]
