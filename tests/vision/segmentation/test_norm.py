"""Norms of the heads: running statistics of whole batches, however these are cut."""

import pytest
import torch
from torch import nn

from magneto.vision.segmentation.norm import BatchNorm, build_head_norm, update_statistics


def test_it_is_torch_s_batch_norm() -> None:
    ours, theirs = BatchNorm(3), nn.BatchNorm2d(3)
    model, x = nn.Sequential(ours), torch.empty(0)
    for seed in range(3):
        x = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(seed)) * 2 + 1
        assert torch.equal(ours(x), theirs(x))
        update_statistics(model, lambda sums: sums)
    held = dict(theirs.named_buffers())
    assert torch.allclose(ours.running_mean, held["running_mean"], atol=1e-6)
    assert torch.allclose(ours.running_var, held["running_var"], atol=1e-5)
    ours.eval()
    theirs.eval()
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)
    assert not ours.sums.any()


def test_running_statistics_are_those_of_the_global_batch() -> None:
    """Two ranks of two micro-batches each, unequal in size, or one batch."""
    x = torch.randn(9, 3, 4, 4) + torch.arange(9.0)[:, None, None, None]
    whole, ranks = BatchNorm(3), [BatchNorm(3), BatchNorm(3)]
    whole(x)
    for rank, pieces in zip(ranks, ((x[:2], x[2:4]), (x[4:7], x[7:])), strict=True):
        for piece in pieces:
            rank(piece)
    total = ranks[0].sums + ranks[1].sums
    for norm in ranks:
        update_statistics(norm, lambda sums: total)
    update_statistics(whole, lambda sums: sums)
    assert torch.equal(ranks[0].running_mean, ranks[1].running_mean)
    for name in ("running_mean", "running_var"):
        assert torch.allclose(getattr(whole, name), getattr(ranks[0], name), atol=1e-5)
    assert (whole.running_mean - 0.4).abs().max() < 0.1  # a tenth of the way to 4


def test_ranks_meet_once_a_step_for_all_norms() -> None:
    model, asked = nn.Sequential(BatchNorm(3), nn.Sequential(BatchNorm(3))), []
    model(torch.randn(2, 3, 4, 4))
    update_statistics(model, lambda sums: asked.append(sums.shape) or sums)
    assert asked == [(3, 6)]
    update_statistics(nn.Sequential(build_head_norm("group", 8)), lambda sums: asked[1])


def test_one_value_has_no_variance() -> None:
    with pytest.raises(ValueError, match="head_norm group"):
        BatchNorm(3)(torch.randn(1, 3, 1, 1))


def test_group_norm_sees_one_image() -> None:
    norm = build_head_norm("group", 48)
    x = torch.randn(3, 48, 4, 4)
    assert torch.allclose(norm(x)[1:2], norm(x[1:2]), atol=1e-6)
    assert norm(x.bfloat16()).dtype == torch.bfloat16
