"""Confidence intervals of a mean and of a difference of two means, by Student's t.

Since groups have few seeds, intervals use the quantile of Student's t for the degrees of freedom,
not the normal distribution's 1.96.
"""

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
            value. The half-width is also nan if all values within each group are equal while the
            means differ, since the variance is then unknown.
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
    """Return each pair's difference of means, first minus second, with Holm's correction.

    With more comparisons, more significant differences occur by chance. With Holm's method (1979)
    the probability of any false positive among all pairs is at most 1 - `level`. It tests each pair
    at a level of its own, which is also the confidence level of the pair's interval. The interval
    contains 0 exactly if the pair does not differ significantly. For paired values, use
    `half_width` of the differences.

    Args:
        pairs: Two groups of independent measurements per pair, such as the scores of two placements
            with several seeds each. A group may be in several pairs.
        level: Probability that no difference is a false positive.

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
    """Return a difference of means with Welch's standard error and degrees of freedom.

    Error and degrees of freedom are nan if a group has one value. If all values within each group
    are equal, the error is 0 if the two means are equal, and nan if they differ.
    """
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
    """Return the p-value of a difference of means, two-sided."""
    from scipy.special import stdtr

    return 1.0 if error == 0 else 2 * float(stdtr(freedom, -abs(mean) / error))


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t.

    Args:
        probability: Probability below the quantile, between 0 and 1 (exclusive).
        freedom: Degrees of freedom, above 0, not necessarily an integer; nan gives nan.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
