"""Scores of answers to labelled texts, what they mean, and what simple models reach."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magneto.data.table import Table
from magneto.files import import_extra
from magneto.functional.cross_entropy import count_numbers, frequency_nats
from magneto.language.classification_inputs import label_values
from magneto.language.labelled_texts import TextPair, Texts, pairs_of


def class_scores(answers: np.ndarray, labels: np.ndarray, classes: int) -> dict[str, float]:
    """Score chosen classes.

    Args:
        answers: Class numbers, (count).
        labels: The right ones.
        classes: How many classes there are.

    Returns:
        "accuracy"; "f1": of class 1 for two classes (as GLUE has it), the mean over classes for
        more; "matthews": the Matthews correlation, 0 where all answers are the same.

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed; names the extra that has it.
    """
    metrics = import_extra("sklearn.metrics", "text", "scores of classifiers need scikit-learn")
    kinds = list(range(classes))
    average = "binary" if classes == 2 else "macro"
    f1 = metrics.f1_score(labels, answers, labels=kinds, average=average, zero_division=0.0)
    return {
        "accuracy": float(np.mean(answers == labels)),
        "f1": float(f1),
        "matthews": float(metrics.matthews_corrcoef(labels, answers)),
    }


def number_scores(answers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Score numbers: "pearson" and "spearman" correlation; 0 where all answers are the same.

    Raises:
        ValueError: If there are fewer than two.
        ModuleNotFoundError: If scipy is not installed; names the extra that has it.
    """
    if len(labels) < 2:
        raise ValueError(f"a correlation is of two answers or more, not {len(labels)}")
    stats = import_extra("scipy.stats", "text", "correlations need scipy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        found: dict[str, Any] = {
            "pearson": stats.pearsonr(answers, labels),
            "spearman": stats.spearmanr(answers, labels),
        }
    values = {name: float(result.statistic) for name, result in found.items()}
    constant = np.ptp(answers) == 0 or np.ptp(labels) == 0
    return {name: 0.0 if constant else value for name, value in values.items()}


# The largest class is remarked on from this share on, where there are two or more.
LARGEST = 0.8
# And the smallest, if it is so many times smaller than an equal share.
SMALLEST = 10


def imbalance(values: np.ndarray, labels: Sequence[str]) -> str:
    """Say that classes are of unequal size, or "" if they are not.

    Args:
        values: Class numbers of the training texts.
        labels: Names of the classes.
    """
    shares = np.bincount(values, minlength=len(labels)) / max(len(values), 1)
    large, small = int(shares.argmax()), int(shares.argmin())
    if shares[large] < LARGEST and shares[small] * len(labels) * SMALLEST >= 1:
        return ""
    return (
        f"classes of unequal size: {labels[large]!r} is {shares[large]:.1%} of the training texts, "
        f"{labels[small]!r} {shares[small]:.1%}; who always answers {labels[large]!r} has that "
        "accuracy: look at f1 and matthews, and choose checkpoints by one (--data.metric f1)"
    )


def score_remarks(metrics: Mapping[str, float], labels: Sequence[str]) -> list[str]:
    """Say what scores of 0 mean.

    Args:
        metrics: As `magneto.language.classification_scores` gives them.
        labels: Names of the classes.
    """
    lines = []
    if metrics.get("f1") == 0 and len(labels) == 2:
        lines.append(f"f1 is 0: {labels[1]!r}, of which it is, was never answered rightly; the "
                     f"order of classes is data.labels ({', '.join(labels)})")  # fmt: skip
    elif metrics.get("matthews") == 0:
        lines.append("matthews is 0: the answers tell nothing of the labels, as where all are one "
                     "class")  # fmt: skip
    return lines


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
