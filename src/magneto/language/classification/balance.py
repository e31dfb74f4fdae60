"""Remarks on classes of unequal size, and on scores that hide what a classifier does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

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
        metrics: As `magneto.language.classification.scores` gives them.
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
