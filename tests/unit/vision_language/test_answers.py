"""Answers to choose from, by the rule and from files; what of an answer is taught."""

import json
from pathlib import Path

import numpy as np
import pytest

from magneto.vision_language.answers import (
    commonest_answers,
    gather_targets,
    known_answers,
    mean_loss,
    read_answers,
    share_known,
    soft_target,
)


def test_known_answers_are_counted_normalised_in_order_of_occurrence() -> None:
    majorities = ["Yes", "the dog", "no", "yes", "dog.", "none", "0", "cat"]
    assert known_answers(majorities, 2) == ["yes", "dog", "0"]
    assert known_answers(majorities, 1) == ["yes", "dog", "no", "0", "cat"]
    assert known_answers(majorities, 3) == []


def test_soft_targets_by_how_many_agree() -> None:
    numbers = {"a": 0, "b": 1, "c": 2, "d": 3}
    answers = ["a"] * 4 + ["b"] * 3 + ["c"] * 2 + ["d"]
    assert soft_target(answers, numbers, "raw") == {0: 1.0, 1: 0.9, 2: 0.6, 3: 0.3}
    assert soft_target(["x"] * 10, numbers, "raw") == {}


def test_the_raw_look_up_misses_what_is_not_written_as_it_is_known() -> None:
    """As the released code: "none" and "Two" are known as "0" and "2" only."""
    numbers = {"0": 0, "2": 1}
    answers = ["none"] * 5 + ["2"] * 3 + ["two", "Two"]
    assert soft_target(answers, numbers, "raw") == {1: 0.9}
    assert soft_target(answers, numbers, "normalised") == {0: 1.0, 1: 1.0}
    assert share_known([answers], numbers, "raw") == 0.3
    assert share_known([answers, ["x"] * 10], numbers, "normalised") == 0.5
    assert share_known([], numbers, "raw") == 0


@pytest.mark.parametrize(
    "text",
    [
        "red\nblue\n\n",
        '["red", "blue"]',
        '{"answer": "red", "label": 0}\n{"answer": "blue", "label": 1}\n',
    ],
)
def test_files_of_answers(tmp_path: Path, text: str) -> None:
    (tmp_path / "answers").write_text(text)
    assert read_answers(str(tmp_path / "answers")) == ["red", "blue"]


def test_a_byte_order_mark_is_no_part_of_an_answer(tmp_path: Path) -> None:
    for text in ("red\nblue\n", '["red", "blue"]', '{"answer": "red", "label": 0}\n'):
        (tmp_path / "answers").write_text(text, encoding="utf-8-sig")
        assert read_answers(str(tmp_path / "answers"))[0] == "red"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no list of answers"),
        ("[1, 2]", "is no list of answers"),
        ("[", "is no list of answers"),
        ("red\nred\n", "has the answer 'red' twice"),
        ('{"answer": "red"}', 'no "answer" and "label"'),
        (json.dumps({"answer": "red", "label": 1}), "labels are not 0, 1, 2"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "answers").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_answers(str(tmp_path / "answers"))
    with pytest.raises(FileNotFoundError, match=r"answer.*did you mean"):
        read_answers(str(tmp_path / "answer"))


def test_dense_targets() -> None:
    questions = [("yes",) * 10, ("no",) * 3 + ("yes",) + ("x",) * 6, ("unheard of",) * 10, ()]
    found = gather_targets(questions, ["no", "yes"], "raw")
    assert np.allclose(found.dense([0, 1, 2, 3]), [[0, 1], [0.9, 0.3], [0, 0], [0, 0]])
    assert np.allclose(found.dense([1]), [[0.9, 0.3]])
    assert found.known.tolist() == [True, True, False, False]
    assert np.allclose(found.means(), [0.9 / 4, 1.3 / 4])


def test_the_commonest_answer_to_the_same_words() -> None:
    """To words that were never asked: the commonest of all; of several, the first."""
    rows = [("a?", "no"), ("a?", "yes"), ("a?", "yes"), ("b?", "no"), ("b?", "maybe"),
            ("c?", "yes")]  # fmt: skip
    texts, answers = [text for text, _ in rows], ["maybe", "no", "yes"]
    targets = gather_targets([(said,) * 10 for _, said in rows], answers, "raw")
    found = commonest_answers(texts, targets, ["a?", "b?", "new?"])
    assert [answers[number] for number in found] == ["yes", "maybe", "yes"]


def test_the_loss_of_the_mean_targets() -> None:
    means, targets = np.array([0.5, 0.25]), np.array([[1.0, 0.0], [0.0, 0.3]])
    likely = -np.log(0.5) - np.log(0.75) - np.log(0.5) - 0.3 * np.log(0.25) - 0.7 * np.log(0.75)
    assert mean_loss(means, targets) == pytest.approx(likely)
