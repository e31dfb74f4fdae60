"""Functions against those of other libraries."""

import pytest
import torch

from magneto.functional.transducer import transducer_loss


def test_the_transducer_loss_is_that_of_warprnnt() -> None:
    warprnnt = pytest.importorskip("warprnnt_numba", reason="needs numba and warprnnt-numba")
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 9, 6, 11, generator=generator, requires_grad=True)
    answers = torch.randint(1, 11, (3, 5), generator=generator)
    frames, counts = torch.tensor([9, 4, 9]), torch.tensor([5, 5, 1])
    theirs = warprnnt.RNNTLossNumba(blank=0, reduction="sum")
    expected = theirs(logits, answers.int(), frames.int(), counts.int())
    found = transducer_loss(logits, answers, frames, counts).sum()
    torch.testing.assert_close(found, expected[0], rtol=1e-6, atol=0)
    # Theirs gives the gradient for logits, from log-probabilities that it makes itself.
    one, other = (torch.autograd.grad(x.sum(), logits)[0] for x in (found, expected))
    torch.testing.assert_close(one, other, rtol=0, atol=3e-6)
