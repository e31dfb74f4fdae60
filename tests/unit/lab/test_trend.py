"""Known optima and power laws are recovered, and intervals have their nominal coverage."""

import math

import numpy as np
import pytest

from magneto.lab.trend import LEVEL, Prior, find_vertex, fit_law, reaches

RATES = (1e-3, 3e-3, 1e-2)
PRIOR = Prior(-0.5, 0.5, 0.3)


def bowl(best: float, noise: list[list[float]]) -> dict[float, list[float]]:
    """Return losses by rate: their log is a parabola with its minimum, log 3, at the best rate."""
    return {
        rate: [3 * math.exp(0.03 * math.log(rate / best) ** 2 + one) for one in row]
        for rate, row in zip(RATES, noise, strict=True)
    }


def test_the_vertex_of_a_parabola_is_found() -> None:
    rate, loss, edge = find_vertex(bowl(2.2e-3, [[0.1, -0.1]] * 3), 3e-3, 1.0)
    assert rate["value"] == pytest.approx(2.2e-3)
    assert loss["value"] == pytest.approx(3 * math.cosh(0.1)), "the mean of both seeds"
    assert not edge and loss["low"] < 3 < loss["high"], "seeds differ in their level"
    assert rate["high"] / rate["low"] < 1.001, "and not in their best rate"
    # One seed's is anywhere between the midpoints to the neighbours, which are a decade apart.
    rate, _, _ = find_vertex(bowl(2.2e-3, [[0.0]] * 3), 3e-3, 1.0)
    assert rate["error"] == pytest.approx(math.log(10) / 2 / math.sqrt(12))


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 3.078), (3, 1.886), (6, 1.476)])
def test_the_vertexs_error_is_that_of_a_mean_over_seeds(seeds: int, quantile: float) -> None:
    """Seeds differ in the log of their best rate by 0.1, and in their loss by 10 %."""
    steps = np.arange(seeds) - (seeds - 1) / 2
    noise = [(steps * (0.1 - 0.006 * math.log(rate / 3e-3))).tolist() for rate in RATES]
    for found in find_vertex(bowl(3e-3, noise), 3e-3, 1.0)[:2]:
        assert found["error"] == pytest.approx(0.1 * steps.std(ddof=1) / math.sqrt(seeds), rel=0.05)
        half = math.log(found["high"] / found["value"])
        assert half == pytest.approx(quantile * found["error"], rel=1e-3)


def test_a_best_rate_at_the_edge_is_said_and_has_the_error_of_an_edge() -> None:
    for best, edge in ((1e-3, "smallest"), (1e-2, "largest")):
        rate, loss, found = find_vertex(bowl(best, [[0.0]] * 3), best, 1.1)
        assert (rate["value"], found, rate["error"]) == (pytest.approx(best), edge, 1.1)
        assert math.isnan(loss["low"]), "one seed shows no noise"


def test_the_vertexs_interval_holds_the_best_rate_as_often_as_it_claims() -> None:
    draws = np.random.default_rng(1)
    held = []
    for _ in range(300):
        best = 3e-3 * math.exp(draws.normal(0, 0.2))
        level = draws.normal(0, 0.02, 3)
        losses = bowl(best, (level + draws.normal(0, 0.01, (3, 3))).tolist())
        tried = min(losses, key=lambda rate: sum(losses[rate]))
        rate, _, _ = find_vertex(losses, tried, 1.0)
        held.append(rate["low"] <= best <= rate["high"])
    assert np.mean(held) == pytest.approx(LEVEL, abs=0.07)


def test_a_power_law_is_recovered() -> None:
    points = [(size, 5 * size**-0.8, 1e-4) for size in (64, 128, 256, 512)]
    wide = Prior(0.0, 10.0, 1e-3)
    law = fit_law(points, 2048, wide)
    assert law["value"] == pytest.approx(5 * 2048**-0.8, rel=1e-3)
    assert law["exponent"] == pytest.approx(-0.8, abs=1e-3)
    assert law["low"] < law["value"] < law["high"]
    assert law["exponent_low"] < -0.8 < law["exponent_high"]
    noisy = fit_law([(size, value, 0.5) for size, value, _ in points], 2048, wide)
    assert noisy["high"] / noisy["value"] > 1.5 > 1.01 > law["high"] / law["value"]
    assert noisy["exponent_high"] - noisy["exponent_low"] > 0.3, "measurements have errors"
    assert reaches(law, 5 * 4096**-0.8, 2048) == pytest.approx(4096, rel=1e-2)
    gaps = [(size, -0.1 + 0.02 * math.log(size), 1e-4) for size in (64, 128, 256)]
    law = fit_law(gaps, 1024, wide, logs=False)
    assert law["value"] == pytest.approx(-0.1 + 0.02 * math.log(1024), abs=1e-3)
    assert law["exponent"] == pytest.approx(0.02, abs=1e-3)


def test_one_rung_gives_what_is_assumed_beforehand() -> None:
    law = fit_law([(64, 1e-2, math.nan)], 256, PRIOR)
    assert law["value"] == pytest.approx(1e-2 / 2) and law["exponent"] == pytest.approx(-0.5)


@pytest.mark.parametrize("rungs", [1, 2, 3, 5])
@pytest.mark.parametrize("scatter", [0.3, 0.6])
def test_forecast_intervals_hold_as_often_as_they_claim(rungs: int, scatter: float) -> None:
    """This includes twice the assumed scatter, if there are enough rungs to detect it."""
    draws = np.random.default_rng(rungs)
    sizes = 64 * 2.0 ** np.arange(rungs + 1)
    held = []
    for _ in range(400):
        logs = draws.normal(-0.5, 0.5) * np.log(sizes) + draws.normal(0, scatter, rungs + 1)
        points = [(s, math.exp(y), 0.0) for s, y in zip(sizes[:-1], logs[:-1], strict=True)]
        law = fit_law(points, sizes[-1], PRIOR)
        held.append(law["low"] <= math.exp(logs[-1]) <= law["high"])
    if scatter == PRIOR.scatter:
        assert 0.77 < np.mean(held) < 0.92
    elif rungs == 5:
        assert 0.6 < np.mean(held) < 0.85
