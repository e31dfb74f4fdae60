"""Accuracies with their standard errors, against numbers worked out by hand."""

import numpy as np
import pytest

from magneto.language.in_context import accuracy, credit


def test_by_hand() -> None:
    right = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], dtype=bool)
    found = accuracy(right)
    assert found.mean == pytest.approx(0.5)
    assert found.by_seed == pytest.approx((0.5, 0.25, 0.75))
    assert found.seed_error == pytest.approx(0.25 / 3**0.5)
    # By item: 1, 2/3, 1/3, 0; their variance is 5/27.
    assert found.item_error == pytest.approx((5 / 27 / 4) ** 0.5)


def test_ties_are_shared() -> None:
    assert [credit([-2.0, -1.0, -3.0], answer) for answer in range(3)] == [0, 1, 0]
    assert [credit([-1.0, -1.0, -3.0], answer) for answer in range(3)] == [0.5, 0.5, 0]


def test_one_seed_or_one_question_has_no_error() -> None:
    assert accuracy(np.ones((1, 5), dtype=bool)).seed_error is None
    assert accuracy(np.ones((3, 1), dtype=bool)).item_error is None


def test_seeds_that_agree_do_not_make_questions_more() -> None:
    one = np.random.default_rng(0).random((1, 50)) < 0.6
    assert accuracy(one.repeat(4, axis=0)).item_error == pytest.approx(accuracy(one).item_error)
