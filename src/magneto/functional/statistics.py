"""Confidence intervals of a mean and of a difference of two means, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

LEVEL = 0.95
"""Default confidence level."""


@dataclass(frozen=True)
class Difference:
    """Difference of two means by Welch's method, which allows unequal variances.

    Attributes:
        mean: First mean minus the second.
        half_width: Half-width of the confidence interval. The half-width is nan if a group has one
            value. It is also nan if both variances are 0 and the means differ.
    """

    mean: float
    half_width: float


def half_width(values: Sequence[float], level: float = LEVEL) -> float:
    """Return the half-width of a mean's confidence interval; nan for fewer than two values."""
    if len(values) < 2:
        return math.nan
    quantile = t_quantile((1 + level) / 2, len(values) - 1)
    return quantile * stdev(values) / math.sqrt(len(values))


def joint_differences(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], level: float = LEVEL
) -> list[Difference]:
    """Return each pair's difference of means, with an interval corrected for multiple comparisons.

    Holm's method (1979) limits the probability of any false positive among all pairs to 1 -
    `level`. Holm's method widens the confidence intervals. A difference is significant if the
    interval does not contain 0. For paired values, pass their differences to the
    function `half_width`.

    Args:
        pairs: Pairs of groups of independent measurements. A group may be in several pairs.
        level: Confidence level of all intervals together.

    Raises:
        ValueError: If a group is empty.
    """
    found = [_standard_error(*pair) for pair in pairs]
    known = (place for place, (_, error, _) in enumerate(found) if not math.isnan(error))
    tested = sorted((_p_value(*found[place]), place) for place in known)
    levels = [level] * len(pairs)
    left = len(tested)
    for p_value, place in tested:
        levels[place] = 1 - (1 - level) / left
        # Once a pair does not differ significantly, no later pair does.
        if p_value <= (1 - level) / left:
            left -= 1
    return [
        Difference(mean, t_quantile((1 + own) / 2, freedom) * error)
        for (mean, error, freedom), own in zip(found, levels, strict=True)
    ]


def _standard_error(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    if not first or not second:
        raise ValueError("a difference of means needs at least one value in each group")
    mean = fmean(first) - fmean(second)
    if len(first) < 2 or len(second) < 2:
        return mean, math.nan, math.nan
    parts = [variance(values) / len(values) for values in (first, second)]
    total = sum(parts)
    if total == 0:
        return mean, 0.0 if mean == 0 else math.nan, len(first) + len(second) - 2
    # Shares of the variance, since squares of tiny numbers could underflow.
    shares = [(part / total) ** 2 for part in parts]
    freedom = 1 / (shares[0] / (len(first) - 1) + shares[1] / (len(second) - 1))
    return mean, math.sqrt(total), freedom


def _p_value(mean: float, error: float, freedom: float) -> float:
    from scipy.special import stdtr

    return 1.0 if error == 0 else 2 * float(stdtr(freedom, -abs(mean) / error))


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t.

    Args:
        probability: Probability below the quantile, between 0 and 1 (exclusive).
        freedom: Degrees of freedom; infinity gives the normal distribution, 0 and nan give nan.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
