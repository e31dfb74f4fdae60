"""The contrastive loss: by hand, and the same gradient however the batch is cut."""

import pytest
import torch
from torch.nn import functional as F

from magneto.vision_language.contrastive import (
    gather_at,
    piece_loss,
)
from magneto.vision_language.model import contrastive_losses


def vectors(count: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, 8, generator=random, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("cuts", [[5], [2, 3], [1, 1, 3]])
def test_pieces_add_up_to_the_gradient_of_the_whole(cuts: list[int]) -> None:
    leaves = [vectors(5, 0).requires_grad_(), vectors(5, 1).requires_grad_(),
              torch.tensor(9.0, dtype=torch.float64, requires_grad=True)]  # fmt: skip
    whole = contrastive_losses(*leaves).sum()
    expected = torch.autograd.grad(whole, leaves)
    everything = leaves[0].detach(), leaves[1].detach()
    value, start, found = 0.0, 0, [torch.zeros_like(leaf) for leaf in leaves]
    for count in cuts:
        own = slice(start, start + count)
        loss = piece_loss(leaves[0][own], leaves[1][own], leaves[2], everything, start)
        for total, part in zip(found, torch.autograd.grad(loss, leaves), strict=True):
            total += part
        value, start = value + loss.item(), start + count
    assert value == pytest.approx(whole.item())
    torch.testing.assert_close(found, list(expected))


def test_a_micro_batch_alone_has_fewer_negatives() -> None:
    """What the pieces are for: without the others, the loss is another one."""
    images, texts, scale = vectors(4, 0), vectors(4, 1), torch.tensor(9.0, dtype=torch.float64)
    alone = contrastive_losses(images[:2], texts[:2], scale).sum()
    among = piece_loss(images[:2], texts[:2], scale, (images, texts), 0)
    assert among > alone


def test_rows_are_put_in_their_place() -> None:
    part = vectors(2, 0)
    whole = gather_at(part, 1, 4)
    assert whole.shape == (4, 8) and torch.equal(whole[1:3], part) and not whole[[0, 3]].any()
