"""Cross-entropy over a vocabulary, as a sum and a count; the logits never exist all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

IGNORED = -100
"""A target that is not predicted."""


@dataclass(frozen=True)
class CrossEntropyLoss:
    """Summed cross-entropy in nats, and how many tokens it is over.

    Attributes:
        total: What to minimise, a scalar with a gradient.
        count: Tokens predicted.
        nll: The sum without label smoothing, a scalar without a gradient.
    """

    total: Tensor
    count: Tensor
    nll: Tensor


def cross_entropy(
    features: Tensor,
    targets: Tensor,
    head: Callable[[Tensor], Tensor],
    chunk: int,
    smoothing: float = 0.0,
) -> CrossEntropyLoss:
    """Sum the cross-entropy of `head(features)`, `chunk` rows of logits at a time.

    A chunk's logits are made again in the backward pass, so that the peak is one chunk's.

    Args:
        features: (batch, length, width).
        targets: (batch, length); `IGNORED` counts for nothing.
        head: Maps (rows, width) to (rows, vocabulary).
        chunk: Rows at a time; 0 for all at once, without making them again.
        smoothing: Share of the target that is spread over the whole vocabulary
            (arXiv 1512.00567, section 7).
    """
    rows, answers = features.flatten(0, -2), targets.flatten()
    count = (answers != IGNORED).sum()
    if chunk == 0 or chunk >= len(answers):
        sums = _chunk_loss(rows, answers, head, smoothing)
        return _loss(sums, count)
    parts = [
        checkpoint(
            _chunk_loss, part, answer, head, smoothing,
            use_reentrant=False, preserve_rng_state=False,
        )
        for part, answer in zip(rows.split(chunk), answers.split(chunk), strict=True)
    ]  # fmt: skip
    sums = torch.stack(parts).sum(0)
    return _loss(sums, count)


def _loss(sums: Tensor, count: Tensor) -> CrossEntropyLoss:
    # Copies: FSDP warns of a module that returns views.
    return CrossEntropyLoss(sums[0].clone(), count, sums[1].detach().clone())


def _chunk_loss(
    rows: Tensor, answers: Tensor, head: Callable[[Tensor], Tensor], smoothing: float
) -> Tensor:
    """Return (2,): the sum to minimise, and without smoothing."""
    logits = head(rows).float()
    if smoothing == 0:
        nll = F.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum")
        return torch.stack((nll, nll.detach()))
    counted = answers != IGNORED
    log_total = logits.logsumexp(-1)
    picked = logits.gather(-1, answers.clamp(min=0)[:, None])[:, 0]
    nll = ((log_total - picked) * counted).sum()
    spread = ((log_total - logits.mean(-1)) * counted).sum()
    return torch.stack(((1 - smoothing) * nll + smoothing * spread, nll.detach()))
