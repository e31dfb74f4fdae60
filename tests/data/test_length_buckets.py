"""Every example once an epoch, in batches of like length, the same after resuming."""

import numpy as np

from magneto.data.length_buckets import LengthBuckets


def buckets(count: int, batch_size: int, seed: int = 1) -> LengthBuckets:
    lengths = np.random.default_rng(0).integers(4, 100, count)
    return LengthBuckets(lengths, batch_size, seed, lambda numbers: numbers)


def test_an_epoch_has_every_example_once() -> None:
    stream = buckets(203, 8)
    given = np.concatenate([part for _ in range(203) for part in stream.next(2, [0, 1])])
    for epoch in range(8):
        assert sorted(given[epoch * 203 : (epoch + 1) * 203]) == list(range(203))


def test_batches_are_of_like_length_in_every_epoch() -> None:
    stream = buckets(1003, 8)
    spread = [np.ptp(stream.lengths[stream.next(1, [0])[0]]) for _ in range(3 * 1003 // 8)]
    for start in (0, 130, 260):
        assert np.median(spread[start : start + 100]) <= 4
    plain = np.random.default_rng(0).permutation(stream.lengths)[:800].reshape(-1, 8)
    assert np.median(np.ptp(plain, axis=1)) > 50
    firsts = [stream.lengths[stream.next(1, [0])[0]].mean() for _ in range(50)]
    assert np.std(firsts) > 15 and firsts != sorted(firsts)


def test_resuming_goes_on_exactly() -> None:
    one, other = buckets(50, 8), buckets(50, 8)
    for _ in range(9):
        one.next(1, [0])
    other.load_state_dict(one.state_dict())
    for _ in range(9):
        assert (one.next(1, [0])[0] == other.next(1, [0])[0]).all()
    assert (buckets(50, 8, 2).order(0) != buckets(50, 8).order(0)).any()


def test_fewer_examples_than_a_batch() -> None:
    stream = buckets(3, 8)
    given = np.concatenate([stream.next(1, [0])[0] for _ in range(3)])
    assert np.bincount(given).tolist() == [8, 8, 8]
