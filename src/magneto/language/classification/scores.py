"""Scores of answers to labelled texts; scikit-learn and scipy do the arithmetic."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from magneto.files import import_extra


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
