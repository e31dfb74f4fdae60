"""Auxiliary losses per utterance, against plain forms."""

import torch
from torch.nn import functional as F

from magneto.speech import model as auxiliary
from magneto.speech.model import ctc_loss, label_loss, symmetric_divergence


def test_ctc_has_no_loss_where_there_is_no_path() -> None:
    logits = torch.randn(3, 4, 6, requires_grad=True)
    targets = torch.tensor([[1, 2, 3, 4, 5], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    found = ctc_loss(logits, targets, [4, 4, 4], [5, 2, 3])
    assert found[0] == 0 and found[1] > 0
    assert found[2] == 0  # three equal labels need a blank between each
    found.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert not logits.grad[0].any() and logits.grad[1].any()


def test_labels_beyond_the_end_count_for_nothing() -> None:
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[1, 2, 3], [4, 0, 0]])
    found = label_loss(logits, targets, torch.tensor([3, 1]), 0.1)
    expected = F.cross_entropy(logits[1, :1], targets[1, :1], label_smoothing=0.1)
    torch.testing.assert_close(found[1], expected)


def test_divergence_is_of_both_posteriors(monkeypatch) -> None:
    monkeypatch.setattr(auxiliary, "CELLS", 1)  # a frame at a time
    torch.manual_seed(0)
    first, second = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    predictor, weight, bias = torch.randn(2, 3, 3), torch.randn(5, 3), torch.randn(5)
    rest = [each.double() for each in (predictor, weight, bias)]
    frames, labels = torch.tensor([4, 2]), torch.tensor([2, 1])
    found = symmetric_divergence(first, second, *rest, frames, labels)
    for row, (frame, label) in enumerate(zip(frames.tolist(), labels.tolist(), strict=True)):
        posteriors = [
            F.linear(torch.tanh(x[row, :frame, None] + rest[0][row, None, : label + 1]), *rest[1:])
            for x in (first, second)
        ]  # fmt: skip
        p, q = (each.log_softmax(-1) for each in posteriors)
        both = F.kl_div(q, p, log_target=True, reduction="none").sum(-1)
        both = both + F.kl_div(p, q, log_target=True, reduction="none").sum(-1)
        torch.testing.assert_close(found[row], both.mean(), check_dtype=False, atol=1e-6, rtol=1e-5)
    same = symmetric_divergence(first, first, *rest, frames, labels)
    torch.testing.assert_close(same, torch.zeros_like(same))
