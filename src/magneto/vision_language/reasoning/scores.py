"""Scores of visual reasoning: accuracy, and consistency as NLVR's authors define it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def consistency(said: Sequence[str], right: np.ndarray) -> float:
    """Return the share of sentences that are judged rightly everywhere they are said.

    Args:
        said: Of each answer, which sentence it is about.
        right: Whether it is right, boolean.
    """
    _, number = np.unique(np.array(said), return_inverse=True)
    wrong = np.bincount(number, weights=~right)
    return float((wrong == 0).mean())
