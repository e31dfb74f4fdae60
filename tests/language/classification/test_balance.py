"""Classes of unequal size, and scores of 0, are remarked on."""

import numpy as np

from magneto.language.classification_scores import imbalance, score_remarks


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
