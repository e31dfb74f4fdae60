"""Scores of classifiers, by hand and at the edges."""

import math

import numpy as np
import pytest

pytest.importorskip("sklearn")

from magneto.language.classification_scores import class_scores, number_scores


def test_two_classes_by_hand() -> None:
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 0])
    answers = np.array([1, 1, 0, 1, 0, 0, 0, 0])  # 2 right, 1 missed, 1 too many, 4 rejected
    scores = class_scores(answers, labels, 2)
    matthews = (2 * 4 - 1 * 1) / math.sqrt(3 * 3 * 5 * 5)
    expected = {"accuracy": 6 / 8, "f1": 2 * 2 / (2 * 2 + 1 + 1), "matthews": matthews}
    assert scores == pytest.approx(expected)


def test_more_classes_have_the_mean_f1() -> None:
    labels, answers = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    each = [2 / 3, 2 / 4, 0.0]  # of classes 0, 1, 2
    assert class_scores(answers, labels, 3)["f1"] == pytest.approx(np.mean(each))
    with_unused = class_scores(answers, labels, 4)["f1"]
    assert with_unused == pytest.approx(sum(each) / 4)


def test_one_answer_for_all_scores_nothing_beyond_its_share() -> None:
    scores = class_scores(np.zeros(4, int), np.array([0, 0, 0, 1]), 2)
    assert scores == {"accuracy": 0.75, "f1": 0.0, "matthews": 0.0}
    assert number_scores(np.full(3, 2.0), np.array([1.0, 2.0, 3.0])) == {
        "pearson": 0.0,
        "spearman": 0.0,
    }


def test_one_answer_has_no_correlation() -> None:
    with pytest.raises(ValueError, match="two answers or more, not 1"):
        number_scores(np.array([1.0]), np.array([2.0]))


def test_correlations() -> None:
    labels = np.array([1.0, 2.0, 3.0, 4.0])
    scores = number_scores(labels**3, labels)
    assert scores["spearman"] == pytest.approx(1.0) and 0.9 < scores["pearson"] < 0.99
    assert number_scores(-2 * labels + 1, labels)["pearson"] == pytest.approx(-1.0)


def test_an_answer_that_is_no_number_is_not_a_correlation_of_zero() -> None:
    pytest.importorskip("scipy")
    found = number_scores(np.array([math.nan, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    assert all(math.isnan(value) for value in found.values())
