"""Accuracies over questions with options, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Accuracy:
    """A mean over demonstration seeds, and what it would vary by.

    Attributes:
        mean: Share of right answers, over all seeds.
        by_seed: The share for each seed.
        seed_error: Standard error of the mean over other draws of demonstrations, for these
            questions; None for fewer than two seeds.
        item_error: Standard error over other questions of the kind; each question counts once, with
            its mean over seeds, since the seeds share the questions. None for one question.
    """

    mean: float
    by_seed: tuple[float, ...]
    seed_error: float | None
    item_error: float | None


def credit(values: Sequence[float], answer: int) -> float:
    """Return 1 if the answer has the highest value, 0 if not; options that tie share the 1.

    So a model that tells no option from another gets chance, wherever the right ones stand: some
    files have them all in the first place.
    """
    best = max(values)
    return (values[answer] == best) / sum(value == best for value in values)


def accuracy(right: np.ndarray) -> Accuracy:
    """Summarise (seeds, items) numbers from 0 to 1: whether the answer was right."""
    by_seed, by_item = right.mean(axis=1), right.mean(axis=0)
    return Accuracy(
        float(right.mean()), tuple(map(float, by_seed)), _error(by_seed), _error(by_item)
    )


def _error(values: np.ndarray) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / len(values) ** 0.5)
