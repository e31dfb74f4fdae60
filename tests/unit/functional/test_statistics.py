"""Student's t, intervals of means and Holm's method against scipy."""

import itertools
import math
import random

import pytest
from scipy import stats

from magneto.functional.statistics import Difference, half_width, joint_differences


def mean_difference(first: list[float], second: list[float]) -> Difference:
    (found,) = joint_differences([(first, second)])
    return found


def test_half_widths_are_scipys() -> None:
    values = [0.3, 1.9, -2.0, 4.4]
    for level in (0.9, 0.95, 0.99):
        low, high = stats.t.interval(level, 3, scale=stats.sem(values))
        assert half_width(values, level=level) == pytest.approx((high - low) / 2, rel=1e-9)
    assert half_width([2.0, 2.0, 2.0]) == 0
    assert math.isnan(half_width([])) and math.isnan(half_width([1.0]))


def test_the_difference_of_means_is_welchs() -> None:
    """Of any sizes, and of tiny values, whose squares of variances underflow."""
    chance = random.Random(0)
    for counts in itertools.product((2, 3, 6), repeat=2):
        first, second = ([chance.gauss(0, scale) for _ in range(n)]
                         for n, scale in zip(counts, (1.0, 3.0), strict=True))  # fmt: skip
        theirs = stats.ttest_ind(first, second, equal_var=False)
        found = mean_difference(first, second)
        interval = found.mean - found.half_width, found.mean + found.half_width
        assert interval == pytest.approx(tuple(theirs.confidence_interval(0.95)), rel=1e-9)
        tiny = mean_difference([v * 1e-160 for v in first], [v * 1e-160 for v in second])
        assert tiny.half_width * 1e160 == pytest.approx(found.half_width, rel=1e-3)


def test_differences_that_have_no_interval() -> None:
    """They do not count among the pairs that are judged together."""
    alone = mean_difference([3.0], [1.0, 2.0])
    assert alone.mean == 1.5 and math.isnan(alone.half_width)
    fixed = mean_difference([2.0, 2.0], [1.0, 1.0, 1.0])  # nothing varies: nobody can tell
    assert fixed.mean == 1.0 and math.isnan(fixed.half_width)
    same = mean_difference([2.0, 2.0], [2.0, 2.0, 2.0])
    assert (same.mean, same.half_width) == (0.0, 0.0)
    with pytest.raises(ValueError, match="at least one value in each group"):
        mean_difference([], [1.0])
    pair, alone, fixed = ([5.1, 4.9, 5.6], [4.2, 5.9]), ([3.0], [1.0, 2.0]), ([2.0] * 2, [1.0] * 2)
    assert joint_differences([alone, pair, fixed])[1] == mean_difference(*pair)
    assert joint_differences([]) == []


def test_pairs_are_judged_together_by_holms_method() -> None:
    """Each pair is told apart exactly where Holm's adjusted p value is at most 1 - `level`."""
    chance = random.Random(2)
    found = 0
    for level in (0.95, 0.8) * 15:
        pairs = [([chance.gauss(0, 1) for _ in range(4)], [chance.gauss(3, 1) for _ in range(3)])
                 for _ in range(6)]  # fmt: skip
        values = [stats.ttest_ind(*pair, equal_var=False).pvalue for pair in pairs]
        ranks = sorted(range(6), key=lambda place: values[place])
        adjusted, largest = {}, 0.0
        for rank, place in enumerate(ranks):
            largest = max(largest, (6 - rank) * values[place])
            adjusted[place] = largest
        for place, gap in enumerate(joint_differences(pairs, level)):
            assert (abs(gap.mean) > gap.half_width) == (adjusted[place] <= 1 - level)
            found += adjusted[place] <= 1 - level
    assert 20 < found < 160
