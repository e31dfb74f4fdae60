"""Scores of classifiers by hand and at the edges, remarks on them, and simple models beside."""

import math

import numpy as np
import pytest

from magneto.data.problems import Counts
from magneto.data.table import table_of
from magneto.language.classification import (
    baseline_metrics,
    class_scores,
    imbalance,
    number_scores,
    score_remarks,
)
from magneto.language.labelled_texts import Texts


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


def test_classes_of_unequal_size() -> None:
    line = imbalance(np.array([0] * 90 + [1] * 10), ("no", "yes"))
    assert "'no' is 90.0%" in line and "'yes' 10.0%" in line and "--data.metric f1" in line
    assert imbalance(np.array([0] * 70 + [1] * 30), ("no", "yes")) == ""
    several = np.repeat(range(4), (40, 30, 29, 1))
    assert "'d' 1.0%" in imbalance(several, ("a", "b", "c", "d"))
    assert imbalance(np.repeat(range(4), 5), ("a", "b", "c", "d")) == ""


def test_scores_of_0() -> None:
    zero = {"accuracy": 0.9, "f1": 0.0, "matthews": 0.0}
    (line,) = score_remarks(zero, ("no", "yes"))
    assert "f1 is 0: 'yes'" in line and "data.labels (no, yes)" in line
    (line,) = score_remarks({**zero, "f1": 0.1}, ("a", "b", "c"))
    assert "matthews is 0" in line
    assert score_remarks({"f1": 0.5, "matthews": 0.2}, ("no", "yes")) == []
    assert score_remarks({"pearson": 0.0}, ()) == []


def test_simple_models_beside() -> None:
    rows = [
        {"text": f"{word} thing {i}", "label": word} for i in range(20) for word in ("bad", "good")
    ]
    texts = Texts(table_of([*rows, rows[0]]), {"": table_of(rows[:2])}, ("bad", "good"), Counts())
    found = baseline_metrics(texts)
    assert found["majority class"]["accuracy"] == 0.5 and found["bag of words"]["accuracy"] == 1
