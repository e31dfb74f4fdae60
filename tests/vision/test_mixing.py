"""Mixup and CutMix of neighbours."""

import numpy as np
import pytest
import torch

from magneto.vision.augmentation import Mixing, draw_mixing, mixed, soft_targets


def test_neighbours_are_mixed_by_their_shares() -> None:
    images = torch.arange(5.0)[:, None, None, None].expand(5, 1, 4, 4)
    targets = soft_targets(torch.arange(5), 5)
    how = [Mixing(0.75), Mixing(0.875, (0, 2, 1, 2))]
    found, shares = mixed(images, targets, how)
    assert torch.equal(found[0], torch.full((1, 4, 4), 0.25)) and found[1].unique() == 0.75
    assert shares[1].tolist() == [0.25, 0.75, 0, 0, 0]
    assert (found[2] == 3).sum() == 2 and found[2, 0, :2, 1].tolist() == [3, 3]
    assert found[3, 0, :2, 1].tolist() == [2, 2] and shares[2].tolist() == [0, 0, 0.875, 0.125, 0]
    assert torch.equal(found[4], images[4]) and torch.equal(shares[4], targets[4])
    assert images[0].unique() == 0  # what was given is as it was


def test_shares_of_labels_are_shares_of_pixels() -> None:
    random = np.random.default_rng(1)
    kinds = set()
    for _ in range(200):
        how = draw_mixing(random, 0.8, 1.0, 16, 24)
        kinds.add(how.box is None)
        assert 0 <= how.share <= 1
        if how.box is not None:
            pair = torch.stack([torch.zeros(1, 16, 24), torch.ones(1, 16, 24)])
            found, _ = mixed(pair, torch.eye(2), [how])
            assert float(1 - found[0].mean()) == pytest.approx(how.share, abs=1e-6)
    assert kinds == {True, False}
    assert draw_mixing(random, 0, 0, 16, 24) == Mixing()
    assert all(draw_mixing(random, 0.8, 0, 8, 8).box is None for _ in range(20))
    assert all(draw_mixing(random, 0, 1.0, 8, 8).box is not None for _ in range(20))


def test_shares_follow_a_beta_distribution() -> None:
    random = np.random.default_rng(2)
    shares = [draw_mixing(random, 0.8, 0, 8, 8).share for _ in range(4000)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    assert np.var(shares) == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.01)
