"""Confidence intervals of a mean and of the difference of two means, by Student's t.

A few runs with different seeds say little about the spread between seeds, so the intervals take the
quantile of Student's t for the degrees of freedom at hand, not the normal distribution's 1.96.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

LEVEL = 0.95
"""Probability that an interval covers the true value, where nothing else is said."""


@dataclass(frozen=True)
class Difference:
    """The difference of two means, by Welch's method: the variances need not be equal.

    Attributes:
        mean: First mean less the second.
        half_width: Half-width of its confidence interval; nan where a group has one value, or no
            value varies and the means differ: equal values show no spread to tell by.
        freedom: Welch and Satterthwaite's degrees of freedom; nan where a group has one value.
    """

    mean: float
    half_width: float
    freedom: float

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the confidence interval."""
        return self.mean - self.half_width, self.mean + self.half_width


def half_width(values: Sequence[float], level: float = LEVEL) -> float:
    """Return the half-width of the confidence interval of a mean; nan for fewer than two values."""
    if len(values) < 2:
        return math.nan
    quantile = t_quantile((1 + level) / 2, len(values) - 1)
    return quantile * stdev(values) / math.sqrt(len(values))


def mean_difference(
    first: Sequence[float], second: Sequence[float], level: float = LEVEL
) -> Difference:
    """Return the mean of `first` less the mean of `second`, with its confidence interval.

    Args:
        first: Independent measurements, for example the scores of one placement's seeds.
        second: The same of what it is compared with. Values that belong together in pairs are
            better told apart by `half_width` of their differences.
        level: Probability that the interval covers the true difference.

    Raises:
        ValueError: If a group is empty.
    """
    return _with_interval(*_standard_error(first, second), level)


def joint_differences(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], level: float = LEVEL
) -> list[Difference]:
    """Return the differences of the means of several pairs, judged together by Holm's method.

    The more pairs are looked at, the more of them differ by chance alone. By Holm's method (1979)
    the probability that any difference of equal means is found, in all pairs together, is at most
    1 - `level`. Each half-width is Welch's at the level at which the method judges its pair: the
    interval holds 0 exactly where no difference is found. A single pair has `mean_difference`'s.

    Args:
        pairs: The groups of each pair; a group may be in several.
        level: Probability that no difference is found where there is none.

    Raises:
        ValueError: If a group is empty.
    """
    found = [_standard_error(*pair) for pair in pairs]
    chances = [_chance(*one) for one in found]
    judged = sorted((chance, place) for place, chance in enumerate(chances) if chance is not None)
    levels = [level] * len(pairs)
    left = len(judged)
    for chance, place in judged:
        levels[place] = 1 - (1 - level) / left
        # From the first pair on that is not told apart, no other one is.
        if chance <= (1 - level) / left:
            left -= 1
    return [_with_interval(*one, own) for one, own in zip(found, levels, strict=True)]


def _standard_error(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return a difference of means, its standard error and its degrees of freedom, by Welch.

    The last two are nan where a group has one value; the error is 0 where no value varies.
    """
    if not first or not second:
        raise ValueError("a difference of means needs at least one value on each side")
    mean = fmean(first) - fmean(second)
    if len(first) < 2 or len(second) < 2:
        return mean, math.nan, math.nan
    parts = [variance(values) / len(values) for values in (first, second)]
    total = sum(parts)
    if total == 0:
        return mean, 0.0, len(first) + len(second) - 2
    # Each group's share of the variance: no square of a tiny number can vanish.
    shares = [(part / total) ** 2 for part in parts]
    freedom = 1 / (shares[0] / (len(first) - 1) + shares[1] / (len(second) - 1))
    return mean, math.sqrt(total), freedom


def _with_interval(mean: float, error: float, freedom: float, level: float) -> Difference:
    """Return a difference with the interval of a level."""
    if math.isnan(error):
        return Difference(mean, math.nan, math.nan)
    if error == 0:
        return Difference(mean, 0.0 if mean == 0 else math.nan, freedom)
    return Difference(mean, t_quantile((1 + level) / 2, freedom) * error, freedom)


def _chance(mean: float, error: float, freedom: float) -> float | None:
    """Return how probable as large a difference of equal means is; None if nobody can tell."""
    if math.isnan(error) or (error == 0 and mean != 0):
        return None
    return 1.0 if error == 0 else 2 * t_tail(abs(mean) / error, freedom)


def t_quantile(probability: float, freedom: float) -> float:
    """Return the value that Student's t stays below with the given probability.

    Newton's method on the tail's probability, from 0. That function is convex there, so that the
    steps never pass the answer.

    Args:
        probability: Between 0 and 1, both excluded.
        freedom: Degrees of freedom, above 0; need not be a whole number.

    Raises:
        ValueError: If an argument is out of its range.
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
    """Return gamma(x + 1/2) / gamma(x); for large x by its asymptotic series (DLMF 5.11.13).

    A difference of two log-gammas would lose the digits that the far tail needs.
    """
    if x < 100:
        return math.gamma(x + 0.5) / math.gamma(x)
    y = 1 / (8 * x)
    return math.sqrt(x) * (1 - y + y**2 / 2 + 5 * y**3 / 2 - 21 * y**4 / 8 - 399 * y**5 / 8)


def t_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t is above `t`, for t of 0 and above.

    It is half the regularised incomplete beta function (Abramowitz and Stegun 26.5.27 and 26.5.4),
    whose power series has positive terms only. Of the series for the tail and the one for the
    middle, the one with the smaller argument is used, which is at most 1/2.
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
