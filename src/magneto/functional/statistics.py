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
            value. The half-width is also nan if values within groups are equal and the means
            differ, since the variance is then unknown.
        freedom: Welch-Satterthwaite degrees of freedom; nan if a group has one value.
    """

    mean: float
    half_width: float
    freedom: float

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the confidence interval."""
        return self.mean - self.half_width, self.mean + self.half_width


def half_width(values: Sequence[float], level: float = LEVEL) -> float:
    """Return the half-width of a mean's confidence interval; nan for fewer than two values."""
    if len(values) < 2:
        return math.nan
    quantile = t_quantile((1 + level) / 2, len(values) - 1)
    return quantile * stdev(values) / math.sqrt(len(values))


def mean_difference(
    first: Sequence[float], second: Sequence[float], level: float = LEVEL
) -> Difference:
    """Return the mean of `first` minus the mean of `second`, with its confidence interval.

    Args:
        first: Independent measurements, such as the scores of a placement's seeds.
        second: Measurements to compare with. For paired values, use `half_width` of the
            differences.
        level: Confidence level.

    Raises:
        ValueError: If a group is empty.
    """
    return _with_interval(*_standard_error(first, second), level)


def joint_differences(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], level: float = LEVEL
) -> list[Difference]:
    """Return the differences of means of several pairs, with Holm's correction.

    With more comparisons, more significant differences occur by chance. With Holm's method (1979)
    the probability of any false positive among all pairs is at most 1 - `level`. The confidence
    level of each interval is the level at which Holm's method tests the pair. The interval contains
    0 exactly if the pair does not differ significantly. For a single pair, the interval is that of
    `mean_difference`.

    Args:
        pairs: The two groups of each pair. A group may be in several pairs.
        level: Probability that no difference is a false positive.

    Raises:
        ValueError: If a group is empty.
    """
    found = [_standard_error(*pair) for pair in pairs]
    values = [_p_value(*one) for one in found]
    tested = sorted((p_value, place) for place, p_value in enumerate(values) if p_value is not None)
    levels = [level] * len(pairs)
    left = len(tested)
    for p_value, place in tested:
        levels[place] = 1 - (1 - level) / left
        # After the first pair without a difference, no other pair has one.
        if p_value <= (1 - level) / left:
            left -= 1
    return [_with_interval(*one, own) for one, own in zip(found, levels, strict=True)]


def _standard_error(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return a difference of means, its standard error and degrees of freedom (Welch).

    Error and degrees of freedom are nan if a group has one value. The error is 0 if values within
    both groups are equal.
    """
    if not first or not second:
        raise ValueError("a difference of means needs at least one value in each group")
    mean = fmean(first) - fmean(second)
    if len(first) < 2 or len(second) < 2:
        return mean, math.nan, math.nan
    parts = [variance(values) / len(values) for values in (first, second)]
    total = sum(parts)
    if total == 0:
        return mean, 0.0, len(first) + len(second) - 2
    # Shares of the variance, since squares of tiny numbers could underflow.
    shares = [(part / total) ** 2 for part in parts]
    freedom = 1 / (shares[0] / (len(first) - 1) + shares[1] / (len(second) - 1))
    return mean, math.sqrt(total), freedom


def _with_interval(mean: float, error: float, freedom: float, level: float) -> Difference:
    """Return a difference with its confidence interval at a level."""
    if math.isnan(error):
        return Difference(mean, math.nan, math.nan)
    if error == 0:
        return Difference(mean, 0.0 if mean == 0 else math.nan, freedom)
    return Difference(mean, t_quantile((1 + level) / 2, freedom) * error, freedom)


def _p_value(mean: float, error: float, freedom: float) -> float | None:
    """Return the p-value of a difference of means, two-sided; None if it is undefined."""
    if math.isnan(error) or (error == 0 and mean != 0):
        return None
    return 1.0 if error == 0 else 2 * t_tail(abs(mean) / error, freedom)


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t.

    Newton's method is applied to the tail probability, starting from 0. Since the function is
    convex for t > 0, steps never overshoot.

    Args:
        probability: Probability below the quantile, between 0 and 1 (exclusive).
        freedom: Degrees of freedom, above 0, not necessarily an integer.

    Raises:
        ValueError: If an argument is out of range.
    """
    if not 0 < probability < 1 or not freedom > 0:
        raise ValueError(
            "Student's t needs a probability between 0 and 1 and degrees of freedom above 0, "
            f"not {probability} and {freedom}"
        )
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    t = 0.0
    while True:
        step = (t_tail(t, freedom) - (1 - probability)) / t_density(t, freedom)
        if t + step <= t:
            return t
        t += step


def t_density(t: float, freedom: float) -> float:
    """Return the density of Student's t."""
    half = freedom / 2
    decay = math.exp(-(half + 0.5) * math.log1p(t * t / freedom))
    return _gamma_ratio(half) / math.sqrt(math.pi * freedom) * decay


def _gamma_ratio(x: float) -> float:
    """Return gamma(x + 1/2) / gamma(x), for large x from its asymptotic series (DLMF 5.11.13).

    A difference of two log-gammas would have too few digits in the far tail.
    """
    if x < 100:
        return math.gamma(x + 0.5) / math.gamma(x)
    y = 1 / (8 * x)
    return math.sqrt(x) * (1 - y + y**2 / 2 + 5 * y**3 / 2 - 21 * y**4 / 8 - 399 * y**5 / 8)


def t_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t exceeds `t`, for t >= 0.

    The probability is half the regularised incomplete beta function (Abramowitz and Stegun 26.5.27
    and 26.5.4). The function's power series has only positive terms. If the argument of the tail's
    series is below 1/2, this series is used, and otherwise the series for the middle.
    """
    weight, square = t * t_density(t, freedom), t * t
    if square > freedom:
        return weight / freedom * _series(freedom / 2, freedom, freedom / (freedom + square))
    return 0.5 - weight * _series(0.5, freedom, square / (freedom + square))


def _series(a: float, freedom: float, x: float) -> float:
    """Sum the terms x^n (c)_n / (a + 1)_n, where c = (freedom + 1) / 2."""
    total, term, n = 1.0, 1.0, 0
    while term > total * 1e-17:
        term *= x * ((freedom + 1) / 2 + n) / (a + 1 + n)
        total += term
        n += 1
    return total
