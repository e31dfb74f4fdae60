"""Buckets hold all utterances, and what is found for them is the largest that fits."""

import numpy as np
import pytest

from magneto.speech.batching import cut_groups
from magneto.speech.buckets import (
    MOST_UTTERANCES,
    Bucket,
    budgets,
    full_group,
    largest_count,
    length_buckets,
)


def drawn(count: int = 1000) -> np.ndarray:
    random = np.random.default_rng(0)
    frames = random.integers(50, 1500, count)
    return np.stack([frames, (frames / 20 * random.uniform(0.3, 1, count)).astype(int)], 1)


def test_every_utterance_is_in_a_bucket_that_holds_it() -> None:
    lengths = drawn()
    buckets = length_buckets(lengths, 5)
    assert sum(each.utterances for each in buckets) == len(lengths)
    assert all(abs(each.utterances - 200) < 20 for each in buckets)
    for frames, labels in lengths:
        its = next(each for each in buckets if frames <= each.frames)
        assert labels <= its.labels
    assert length_buckets(np.array([[100, 3]] * 7), 5) == [Bucket(100, 3, 7)]
    assert [each.utterances for each in length_buckets(drawn(2), 5)] == [1, 1]


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 8, 9, 100, 1000])
def test_the_largest_count_is_found_and_no_more_than_double_is_tried(most: int) -> None:
    tried = []

    def fits(count: int) -> bool:
        tried.append(count)
        return count <= most

    assert largest_count(fits) == most
    assert max(tried) <= max(2 * most, 1)
    assert MOST_UTTERANCES / 2 < largest_count(lambda count: True) <= MOST_UTTERANCES


def test_every_group_of_the_budgets_is_within_what_fits() -> None:
    """A memory that frames, frames x labels and frames squared cost."""

    def memory(count: int, frames: int, labels: int) -> float:
        return count * frames * (30 + (labels + 1) + frames / 50)

    lengths, limit = drawn(), 500_000
    buckets = length_buckets(lengths, 5)
    counts = [
        largest_count(lambda n, each=each: memory(n, each.frames, each.labels) <= limit)
        for each in buckets
    ]
    frames, cells = budgets(buckets, counts)
    groups = cut_groups(lengths, frames, cells, np.random.default_rng(1))
    worst = [memory(len(group), *lengths[group].max(0)) for group in groups]
    assert max(worst) <= limit and max(worst) > limit / 2


def test_a_full_group() -> None:
    group = full_group(Bucket(40, 3, 9), 5, 8, 11)
    assert group.features.shape == (5, 40, 8) and group.targets.shape == (5, 3)
    assert group.targets.min() >= 1 and group.targets.max() <= 10
    assert group.sizes == [(40, 3)] * 5 and group.frames == group.cells == 200
