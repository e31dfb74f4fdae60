"""Baselines on labelled texts do what their names say."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from magneto.language.classification.baselines import label_baselines
from magneto.language.classification.files import Row


def test_classes() -> None:
    rows = [Row(f"{word} thing {i}", None, word) for i in range(20) for word in ("bad", "good")]
    answers = label_baselines([*rows, rows[0]], rows[:2], ("bad", "good"))
    assert answers["majority class"].tolist() == [0, 0]
    assert answers["bag of words"].tolist() == [0, 1]


def test_numbers_and_pairs_by_what_the_texts_share() -> None:
    random = np.random.default_rng(0)
    words = [f"word{i}" for i in range(50)]
    rows = []
    for _ in range(300):
        one, two = random.choice(words, 6, replace=False), random.choice(words, 6, replace=False)
        shared = random.integers(0, 7)
        two[:shared] = one[:shared]
        rows.append(Row(" ".join(one), " ".join(two), str(shared)))
    answers = label_baselines(rows[:250], rows[250:], ())
    known = np.array([float(row.label) for row in rows[250:]])
    assert answers["majority class"][0] == pytest.approx(
        np.mean([float(row.label) for row in rows[:250]])
    )
    assert np.corrcoef(answers["bag of words"], known)[0, 1] > 0.9
