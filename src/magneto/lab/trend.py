"""Extrapolation from a few sizes to a larger size: parabolas and power laws.

The best learning rate is the vertex of a parabola that describes the logarithm of the loss as a
function of the logarithm of the rate. A power law describes how the best rate depends on the size,
and is fitted in logarithms. The law's exponent and scatter have priors, because a few sizes do not
suffice to measure them. With more sizes, the priors matter less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from magneto.functional.statistics import t_quantile

LEVEL = 0.8
"""Nominal coverage of a ladder's intervals: the probability with which an interval should contain
the true value."""
# Bootstrap samples of the seeds, if there are too many seeds for all possible samples.
DRAWS, ENUMERATED = 2000, 5


Estimate = dict[str, float]
"""An estimate with the keys "value", "low", "high" and "error". The interval from "low" to "high"
covers the true value with probability `LEVEL`.

"error" is the standard error of the value's natural logarithm."""

Law = dict[str, Any]
"""A law and its forecast. The law is that log(value), or the value itself, is linear in log(size).

"value" is the forecast at the requested size, and "low" and "high" are the ends of its interval.
"exponent" is the fitted exponent, and "exponent_low" and "exponent_high" are the ends of its
interval. Each interval covers the true value with probability `LEVEL`. If the value itself is
linear in log(size), "exponent" is the slope. "points" are the (size, value, error) of the fit."""


def find_vertex(
    losses: Mapping[float, Sequence[float]], tried: float, edge_error: float
) -> tuple[Estimate, Estimate, str]:
    """Fit a parabola to the log of the loss near the best rate, in the log of the rate.

    The log keeps the minimum nearer to the measured losses where a neighbour of the best rate has
    barely learned. Intervals come from a bootstrap over seeds. Each bootstrap sample draws the same
    seeds at all rates, because runs with the same seed have the same batches. The bootstrap's
    standard error is corrected by sqrt(n / (n - 1)) for n seeds, and intervals use Student's t.

    Args:
        losses: The losses of the seeds at each rate. The order of seeds is the same at all rates.
        tried: The rate in `losses` with the lowest mean loss.
        edge_error: Standard error of the log rate if `tried` is the smallest or the largest rate.
            If `tried` has neighbours on both sides and there is only one seed, the log of the best
            rate is assumed to be uniformly distributed between the midpoints to the neighbours.

    Returns:
        The estimated best rate, the estimated loss at this rate, and the place of `tried`. With one
        seed, the error and the interval of the loss are nan. The place is "smallest", "largest", or
        "" for a rate in between. At the places "smallest" and "largest", a better rate may lie
        outside the tested range.
    """
    rates = sorted(losses)
    table = np.array([losses[rate] for rate in rates], float)  # (rates, seeds)
    seeds = table.shape[1]
    weights = _seed_weights(seeds)
    best = rates.index(tried)
    edge = "smallest" if best == 0 else "largest" if best == len(rates) - 1 else ""
    if edge:
        log_losses = np.log(weights @ table[best])
        log_rates, assumed = np.full_like(log_losses, math.log(tried)), edge_error
    else:
        x = np.log(rates[best - 1 : best + 2])
        log_rates, log_losses = _vertices(x, np.log(weights @ table[best - 1 : best + 2].T))
        assumed = (x[2] - x[0]) / 2 / math.sqrt(12)
    grown = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else math.nan
    rate_error, loss_error = (grown * logs[1:].std() for logs in (log_rates, log_losses))
    freedom = float(seeds - 1)
    loss = estimate(log_losses[0], loss_error, freedom)
    if edge or seeds == 1:
        rate_error, freedom = assumed, math.inf
    return estimate(log_rates[0], rate_error, freedom), loss, edge


def _seed_weights(seeds: int) -> np.ndarray:
    """Return the weight of each seed in a mean over seeds and in bootstrap samples.

    The first row is the mean over all seeds. The other rows are all possible samples of up to
    `ENUMERATED` seeds, or `DRAWS` random samples of more seeds.
    """
    if seeds <= ENUMERATED:
        samples = np.array([*product(range(seeds), repeat=seeds)])
    else:
        samples = np.random.default_rng(0).integers(seeds, size=(DRAWS, seeds))
    return np.vstack([np.full(seeds, 1 / seeds), np.eye(seeds)[samples].mean(1)])


def _vertices(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions and the values of minima of parabolas.

    Each parabola goes through three points. If the middle point is not the lowest, the lowest point
    is returned.

    Args:
        x: Ascending positions of the three points, (3,).
        y: Values at the three points, (parabolas, 3).
    """
    left, right = (y[:, 1] - y[:, 0]) / (x[1] - x[0]), (y[:, 2] - y[:, 1]) / (x[2] - x[1])
    curve = (right - left) / (x[2] - x[0])
    inside = (y[:, 1] <= y[:, 0]) & (y[:, 1] <= y[:, 2]) & (curve > 0)
    place = (x[0] + x[1]) / 2 - left / (2 * np.where(inside, curve, 1.0))
    value = y[:, 0] + (place - x[0]) * (left + curve * (place - x[1]))
    lowest = y.argmin(1)
    ends = np.take_along_axis(y, lowest[:, None], 1)[:, 0]
    return np.where(inside, place, x[lowest]), np.where(inside, value, ends)


def estimate(log: float, error: float, freedom: float) -> Estimate:
    """Return the estimate of a value whose logarithm is `log`, with Student's interval."""
    half = error * t_quantile((1 + LEVEL) / 2, freedom)
    ends = {"value": log, "low": log - half, "high": log + half}
    return {**{name: math.exp(end) for name, end in ends.items()}, "error": float(error)}


@dataclass(frozen=True)
class Prior:
    """Prior of a power law's exponent and scatter."""

    exponent: float  # its most likely value
    spread: float  # standard deviation of the exponent
    scatter: float  # standard deviation of single sizes around the law, in logarithms
    weight: int = 4  # number of sizes that the prior scatter counts as


def fit_law(
    points: Sequence[tuple[float, float, float]],
    size: float,
    prior: Prior,
    *,
    logs: bool = True,
) -> Law:
    """Fit a power law and forecast the value at a size.

    Args:
        points: A tuple (size, value, error) for each measured size. The error is the standard
            error of log(value); nan counts as 0.
        size: Size at which to forecast the value.
        prior: Prior of the law's parameters, see `Prior`.
        logs: Whether log(value) is linear in log(size). If `logs` is False, the value itself is
            linear in log(size), and errors are standard errors of the values.

    Returns:
        The law. The forecast's interval includes the scatter of measured values around the law.
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
        "points": [*points],
    }


def reaches(law: Law, limit: float, size: float) -> float | None:
    """Return the size at which the value of a law reaches `limit`; None if there is no such size.

    `law["value"]` must be the value at `size`, and log(value) must be linear in log(size), as with
    `logs=True` in `fit_law`.
    """
    if not law["exponent"]:
        return None
    power = math.log(limit / law["value"]) / law["exponent"]
    return size * math.exp(power) if power < 50 else None
