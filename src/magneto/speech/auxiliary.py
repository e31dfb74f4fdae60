"""The auxiliary losses of a transducer (Boyer et al. 2021, arXiv 2201.05420), per utterance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from magneto.speech.front_end import frame_mask
from magneto.speech.vocabulary import BLANK

# Cells of the lattice whose logits exist at once, twice, for the divergence.
CELLS = 8192


def ctc_loss(
    logits: Tensor, targets: Tensor, frames: Sequence[int], labels: Sequence[int]
) -> Tensor:
    """Return connectionist temporal classification's loss (Graves et al. 2006), in nats.

    It is 0, and without a gradient, for an utterance that has no path: more labels than frames, or
    as many with repeated ones.

    Args:
        logits: (batch, frames, vocabulary).
        targets: (batch, labels), blank where there is padding.
        frames: Of each utterance, as plain numbers: torch would read a tensor from the device.
        labels: Likewise.
    """
    chances = logits.float().log_softmax(-1).transpose(0, 1)
    if chances.is_meta:  # operations are counted, of which these are hardly any
        return chances.sum((0, 2))
    counts: list[Any] = [tuple(frames), tuple(labels)]  # torch's stubs know tensors only
    return F.ctc_loss(
        chances, targets, counts[0], counts[1], BLANK, reduction="none", zero_infinity=True
    )


def label_loss(logits: Tensor, targets: Tensor, lengths: Tensor, smoothing: float) -> Tensor:
    """Return the summed cross-entropy of each utterance's labels, in nats.

    Args:
        logits: (batch, labels, vocabulary), of what comes next.
        targets: (batch, labels).
        lengths: (batch,) labels.
        smoothing: Share of each target that is spread over the vocabulary.
    """
    each = F.cross_entropy(
        logits.float().transpose(1, 2), targets, reduction="none", label_smoothing=smoothing
    )
    return torch.where(frame_mask(lengths, targets.shape[1]), each, 0).sum(1)


def symmetric_divergence(
    first: Tensor,
    second: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor,
    frames: Tensor,
    labels: Tensor,
) -> Tensor:
    """Return KL(p|q) + KL(q|p) of two joiners' posteriors, a mean over each utterance's lattice.

    Logits are made for some frames at a time, and again in the backward pass.

    Args:
        first: (batch, time, joint), projected features of the last layer; and of p.
        second: Likewise, of an intermediate layer.
        predictor: (batch, labels + 1, joint).
        weight: (vocabulary, joint), of the output layer.
        bias: (vocabulary,).
        frames: (batch,).
        labels: (batch,).
    """
    batch, time, _ = first.shape
    step = max(1, CELLS // (batch * predictor.shape[1]))
    inside = (
        frame_mask(frames, time)[..., None] & frame_mask(labels + 1, predictor.shape[1])[:, None]
    )
    total = first.new_zeros(batch, dtype=torch.float32)
    for start in range(0, time, step):
        part = slice(start, start + step)
        total = total + checkpoint(
            _divergence, first[:, part], second[:, part], predictor, weight, bias, inside[:, part],
            use_reentrant=False,
        )  # fmt: skip
    return total / inside.sum((1, 2)).clamp(min=1)


def _divergence(
    first: Tensor, second: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor, inside: Tensor
) -> Tensor:
    """Return the sum over some frames, (batch,)."""
    one, other = (
        F.linear(torch.tanh(x[:, :, None] + predictor[:, None]), weight, bias).float()
        for x in (first, second)
    )
    one, other = one.log_softmax(-1), other.log_softmax(-1)
    both = ((one.exp() - other.exp()) * (one - other)).sum(-1)
    return torch.where(inside, both, 0).sum((1, 2))
