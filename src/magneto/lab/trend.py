"""Extrapolation from a few sizes to a larger one: parabolas and power laws.

A best rate is the vertex of a parabola in the logarithm of the rate. A dependence on size is fitted
by a power law in logarithms. Exponent and scatter have priors, because few rungs determine them
poorly; the priors matter less with more rungs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from magneto.functional.statistics import t_quantile

LEVEL = 0.8
"""Probability that an interval of a ladder covers the true value."""
# Bootstrap samples of the seeds.
DRAWS = 2000


Estimate = dict[str, float]
"""A "value", the ends "low" and "high" of its interval at `LEVEL`, and the "error", the standard
error of its natural logarithm."""

Law = dict[str, float]
"""A law and its forecast: the value or its logarithm is linear in the logarithm of the size.

"value" is the forecast at the requested size, "low" and "high" are the ends of its interval, and
"exponent", "exponent_low", "exponent_high" those of the exponent, all at `LEVEL`. If the value
itself is linear, the exponent is its change when the size grows by a factor of e = 2.72."""


def find_vertex(
    losses: Mapping[float, Sequence[float]], tried: float, edge_error: float
) -> tuple[Estimate, Estimate, str]:
    """Fit a parabola in log rate through the best rate and its neighbours.

    Intervals are by bootstrap over seeds. A bootstrap sample has the same seeds at all rates,
    because the batches of a seed are the same at every rate. The bootstrap's standard error is
    corrected by sqrt(n / (n - 1)) for n seeds, and intervals use Student's t.

    Args:
        losses: Loss of every seed by rate; seeds have the same order at all rates.
        tried: The best of these rates.
        edge_error: Standard error of the log rate if the best rate is the smallest or largest. Any
            other best rate of a single seed is assumed to lie anywhere between the midpoints to its
            neighbours.

    Returns:
        The best rate; its loss, whose error and interval are nan for one seed; and "smallest" or
        "largest" if the best rate is the smallest or largest that has a loss, so that the true one
        may lie beyond, else "".
    """
    rates = sorted(losses)
    table = np.array([losses[rate] for rate in rates], float)  # (rates, seeds)
    seeds = table.shape[1]
    weights = np.random.default_rng(0).multinomial(seeds, [1 / seeds] * seeds, DRAWS) / seeds
    best = rates.index(tried)
    window = 0.0
    edge = "smallest" if best == 0 else "largest" if best == len(rates) - 1 else ""
    if edge:
        rate, loss = math.log(rates[best]), table[best].mean()
        bootstrap_rates, bootstrap_losses = np.full(DRAWS, rate), weights @ table[best]
    else:
        x = np.log(rates[best - 1 : best + 2])
        near, window = table[best - 1 : best + 2], (x[2] - x[0]) / 2
        found, lowest = _vertices(x, near.mean(1)[None])
        rate, loss = found[0], lowest[0]
        bootstrap_rates, bootstrap_losses = _vertices(x, weights @ near.T)
    grown = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else math.nan
    rate_error, loss_error = grown * bootstrap_rates.std(), grown * np.log(bootstrap_losses).std()
    freedom = float(seeds - 1)
    if edge or seeds == 1:  # the error is assumed
        rate_error, freedom = edge_error if edge else window / math.sqrt(12), math.inf
    best_rate = _estimate(math.exp(rate), rate, rate_error, freedom)
    return best_rate, _estimate(loss, math.log(loss), loss_error, seeds - 1), edge


def _vertices(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return position and value of the minima of parabolas through three points each.

    Args:
        x: Positions of the points, (3,), ascending.
        y: (parabolas, 3), positive. If the middle point is not the lowest, or the parabola is not
            positive, the lowest point is returned.
    """
    left, right = (y[:, 1] - y[:, 0]) / (x[1] - x[0]), (y[:, 2] - y[:, 1]) / (x[2] - x[1])
    curve = (right - left) / (x[2] - x[0])
    inside = (y[:, 1] <= y[:, 0]) & (y[:, 1] <= y[:, 2]) & (curve > 0)
    slope = left - curve * (x[0] + x[1])
    safe = np.where(inside, curve, 1.0)
    place = np.clip(-slope / (2 * safe), x[0], x[2])
    value = y[:, 0] + (place - x[0]) * (left + safe * (place - x[1]))
    inside &= value > 0  # a loss is not negative
    lowest = y.argmin(1)
    ends = np.take_along_axis(y, lowest[:, None], 1)[:, 0]
    return np.where(inside, place, x[lowest]), np.where(inside, value, ends)


def _estimate(value: float, log_value: float, error: float, freedom: float) -> Estimate:
    upper, half = (1 + LEVEL) / 2, math.nan
    if freedom:
        known = math.isinf(freedom)
        half = error * (NormalDist().inv_cdf(upper) if known else t_quantile(upper, freedom))
    ends = {"low": math.exp(log_value - half), "high": math.exp(log_value + half)}
    return {"value": float(value), **ends, "error": float(error)}


@dataclass(frozen=True)
class Prior:
    """Prior of a power law."""

    exponent: float  # its most likely value
    spread: float  # standard deviation of the exponent
    scatter: float  # standard deviation of single rungs around the law, in logarithms
    weight: int = 4  # number of rungs that the prior scatter counts as


def fit_law(
    points: Sequence[tuple[float, float, float]],
    size: float,
    prior: Prior,
    *,
    logs: bool = True,
) -> Law:
    """Fit a power law and forecast the value at a size.

    Args:
        points: (size, value, standard error of the value's logarithm) of each rung, at least one;
            an error of nan counts as 0.
        size: Size to forecast for.
        prior: Prior of the exponent and of the scatter.
        logs: Whether the logarithm of the value is linear in that of the size; else the value
            itself is, and the error is that of the value.

    Returns:
        The law. The interval covers a measured value, so it includes a rung's scatter.
    """
    sizes, values, errors = (np.array(part, float) for part in zip(*points, strict=True))
    x, y = np.log(sizes), np.log(values) if logs else values
    middle = x.mean()
    x, at = x - middle, math.log(size) - middle
    noise = prior.scatter**2 + float(np.nan_to_num(errors**2).mean())
    free = max(len(x) - 2, 0)
    residue = 0.0
    if free:
        line = np.polyfit(x, y, 1)
        residue = float(((y - np.polyval(line, x)) ** 2).sum())
    variance = (prior.weight * noise + residue) / (prior.weight + free)
    precision = np.array([[len(x), x.sum()], [x.sum(), (x**2).sum()]]) / variance
    precision[1, 1] += prior.spread**-2
    pull = np.array([y.sum(), (x * y).sum()]) / variance
    pull[1] += prior.exponent / prior.spread**2
    covariance = np.linalg.inv(precision)
    level, exponent = covariance @ pull
    here = np.array([1.0, at])
    quantile = t_quantile((1 + LEVEL) / 2, prior.weight + free)
    half = quantile * math.sqrt(here @ covariance @ here + variance)
    slope = quantile * math.sqrt(covariance[1, 1])
    value = level + exponent * at
    ends = {"value": value, "low": value - half, "high": value + half}
    return {
        **{name: math.exp(end) if logs else float(end) for name, end in ends.items()},
        "exponent": float(exponent),
        "exponent_low": float(exponent - slope),
        "exponent_high": float(exponent + slope),
    }


def reaches(law: Law, limit: float, size: float) -> float | None:
    """Return the size at which a law, fitted in logarithms and forecast for `size`, is `limit`.

    None if it never is.
    """
    if not law["exponent"]:
        return None
    power = math.log(limit / law["value"]) / law["exponent"]
    return size * math.exp(power) if power < 50 else None
