"""Consistency, against NLVR's own definition by hand."""

import numpy as np
import pytest

from magneto.vision_language.reasoning.scores import consistency


def test_a_sentence_is_consistent_where_all_of_its_uses_are_right() -> None:
    said = ["a", "b", "a", "c", "b", "d"]
    assert consistency(said, np.array([1, 1, 1, 0, 0, 1], bool)) == pytest.approx(2 / 4)
    assert consistency(said, np.ones(6, bool)) == 1.0
    assert consistency(said, np.zeros(6, bool)) == 0.0
