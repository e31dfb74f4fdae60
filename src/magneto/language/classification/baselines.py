"""What simple models answer on labelled texts: the least that a trained classifier should beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magneto.data.frequencies import count_numbers, frequency_nats
from magneto.data.table import Table
from magneto.files import import_extra
from magneto.language.classification.data import label_values
from magneto.language.classification.scores import class_scores, number_scores
from magneto.language.classification.texts import TextPair, Texts, pairs_of


def constant_answer(train: np.ndarray, held: np.ndarray, classes: int) -> tuple[np.ndarray, float]:
    """Answer without a look at the texts.

    Args:
        train: Labels of the training texts as `label_values` gives them.
        held: Those of the texts to answer.
        classes: How many there are; 0 for numbers.

    Returns:
        The commonest class, or the mean, for each text, (len(held),); and the summed loss: nats of
        the classes' frequencies, or squared error.
    """
    if not classes:
        mean = train.mean(dtype=np.float64)
        return np.full(len(held), mean), float(((held - mean) ** 2).sum())
    counts = count_numbers(train, classes)
    nats = frequency_nats(counts, count_numbers(held, classes))
    return np.full(len(held), counts.argmax()), nats


def label_baselines(train: Table, held: Table, labels: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the answers of two baselines to the rows of a validation set.

    "majority class" (the mean, of numbers) does not look at the text. "bag of words" is a logistic
    regression (ridge, for numbers) with scikit-learn's own strengths on tf-idf of words; a pair's
    features are the words' product and absolute difference, and the cosine of the two texts.

    Args:
        train: Training rows.
        held: Rows to answer.
        labels: Classes in the order of their numbers; empty for numbers.

    Returns:
        Class numbers, or numbers, (len(held)), by the baseline's name.

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed; names the extra that has it.
    """
    linear, text, sparse = _import_learners()
    known = label_values(train, labels)
    common = np.bincount(known).argmax() if labels else known.mean()
    words = text.TfidfVectorizer(token_pattern=r"(?u)\b\w+\b")
    rows = pairs_of(train)
    words.fit([part for row in rows for part in row if part is not None])
    learner = linear.LogisticRegression(max_iter=2000) if labels else linear.Ridge()
    learner.fit(_features(rows, words, sparse), known)
    return {
        "majority class": np.full(len(held), common),
        "bag of words": learner.predict(_features(pairs_of(held), words, sparse)),
    }


def baseline_metrics(texts: Texts) -> dict[str, dict[str, float]]:
    """Return the metrics that `label_baselines` reach on validation data, by the baseline's name.

    Those of a second validation set end in its name ("accuracy_mismatched").
    """
    found: dict[str, dict[str, float]] = {}
    for name, held in texts.validation.items():
        known = label_values(held, texts.labels)
        for baseline, answers in label_baselines(texts.train, held, texts.labels).items():
            metrics = (
                class_scores(answers, known, len(texts.labels))
                if texts.labels
                else number_scores(answers, known)
            )
            named = {f"{key}_{name}" if name else key: value for key, value in metrics.items()}
            found.setdefault(baseline, {}).update(named)
    return found


def _features(rows: Sequence[TextPair], words: Any, sparse: Any) -> Any:
    first = words.transform([row.text for row in rows])
    if rows[0].pair is None:
        return first
    second = words.transform([row.pair for row in rows])
    product = first.multiply(second).tocsr()
    return sparse.hstack([product, abs(first - second), sparse.csr_matrix(product.sum(axis=1))])


def _import_learners() -> list[Any]:
    names = ("sklearn.linear_model", "sklearn.feature_extraction.text", "scipy.sparse")
    return [import_extra(name, "text", "baselines need scikit-learn") for name in names]
