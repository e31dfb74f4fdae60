"""Baselines on labelled texts do what their names say."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from magneto.data.table import table_of
from magneto.language.classification_scores import label_baselines


def test_classes() -> None:
    rows = [
        {"text": f"{word} thing {i}", "label": word} for i in range(20) for word in ("bad", "good")
    ]
    train, held = table_of([*rows, rows[0]]), table_of(rows[:2])
    answers = label_baselines(train, held, ("bad", "good"))
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
        rows.append({"text": " ".join(one), "pair": " ".join(two), "label": str(shared)})
    train, held = table_of(rows[:250]), table_of(rows[250:])
    answers = label_baselines(train, held, ())
    known = np.array([float(label) for label in held.values("label")])
    assert answers["majority class"][0] == pytest.approx(
        np.mean([float(label) for label in train.values("label")])
    )
    assert np.corrcoef(answers["bag of words"], known)[0, 1] > 0.9
