"""Cross-entropy of a linear layer's logits, which never exist all at once; and of frequencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORED = -100
"""A target that is not predicted."""

CHUNK = 1024
"""Rows of logits that exist at once, unless told."""
# Processor time of whole training steps over that with all logits, fp32, width 256, one thread
# by rows of a chunk:
#   vocabulary, tokens of a step    256   512  1024  2048  4096
#    8192,                  1024   0.86  0.86  0.84
#    8192,                  4096   0.92  0.85  0.85  0.90  0.89
#   50257,                  4096   0.79  0.85  0.80  0.86  0.89

# Numbers counted at a time: a memory-mapped corpus is never in memory as 64-bit numbers.
PIECE = 1 << 24


@dataclass(frozen=True)
class CrossEntropyLoss:
    """Summed cross-entropy in nats, and how many targets it is over.

    Attributes:
        total: What to minimise, a scalar with a gradient.
        count: Targets predicted.
        nll: The sum without label smoothing, a scalar without a gradient.
    """

    total: Tensor
    count: Tensor
    nll: Tensor


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    chunk: int = CHUNK,
    smoothing: float = 0.0,
) -> CrossEntropyLoss:
    """Sum the cross-entropy of the logits `features @ weight.T + bias`.

    Where a gradient is wanted, the forward pass computes it beside the loss, chunk by chunk, from
    the same logits; the backward pass only scales it. It can be differentiated once.

    Under autocast, matrices are multiplied in its type; the softmax and the sum over chunks of the
    weight's gradient are in fp32, if the weight is.

    Args:
        features: (..., width).
        weight: (vocabulary, width).
        targets: (...), in [0, vocabulary); `IGNORED` counts for nothing.
        bias: (vocabulary,).
        chunk: Rows of logits that exist at once; 0 for all.
        smoothing: Share e of the target that is spread over the whole vocabulary of V, the right
            token among them: 1 - e + e/V for it, e/V for each other (arXiv 1512.00567, section 7;
            fairseq's is 1 - e and e/(V - 1)).

    Raises:
        ValueError: If targets are not shaped as features without their width.
    """
    if targets.shape != features.shape[:-1]:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit features of shape "
            f"{tuple(features.shape)}: all but the last size must be the same"
        )
    device = features.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    operand = torch.get_autocast_dtype(device) if autocast else weight.dtype
    rows, answers = features.flatten(0, -2), targets.flatten()
    given = (rows, weight, bias, answers, chunk or max(1, len(rows)), smoothing, operand)
    if torch.is_grad_enabled():
        total, nll = cast(tuple[Tensor, Tensor], _LinearCrossEntropy.apply(*given))
    else:
        total, nll, _ = _loss_and_gradients(*given, wanted=(False, False, False))
    return CrossEntropyLoss(total, (answers != IGNORED).sum(), nll)


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss, whose gradient is ready before the backward pass begins."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        """Return the total and the sum without smoothing; keep the gradients of the total."""
        total, nll, gradients = _loss_and_gradients(*given, wanted=ctx.needs_input_grad[:3])
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_total: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Scale the gradients; not in place, as the graph may be kept for another pass."""
        scaled = [None if kept is None else kept * grad_total for kept in ctx.saved_tensors]
        return (*scaled, None, None, None, None)


def _loss_and_gradients(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    answers: Tensor,
    chunk: int,
    smoothing: float,
    operand: torch.dtype,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, tuple[Tensor | None, Tensor | None, Tensor | None]]:
    """Return the total, the sum without smoothing, and the wanted gradients of the total.

    Args:
        rows: (rows, width).
        weight: (vocabulary, width).
        bias: (vocabulary,) or None.
        answers: (rows,).
        chunk: Rows at a time, at least 1.
        smoothing: Share of the target that is spread.
        operand: The type in which matrices are multiplied.
        wanted: Whether a gradient of rows, weight and bias is.
    """
    matrix, shift = weight.to(operand), None if bias is None else bias.to(operand)
    # One buffer for all chunks: a large one that is new is slow to touch.
    buffer = torch.empty(
        min(chunk, len(rows)), len(weight), device=rows.device,
        dtype=torch.promote_types(operand, torch.float32),
    )  # fmt: skip
    totals, nlls, grad_rows, grad_weight, grad_bias = [], [], [], None, None
    for part, answer in zip(rows.split(chunk), answers.split(chunk), strict=True):
        ignored = (answer == IGNORED)[:, None]
        # An ignored row is zero here and its gradient below, so no pass over logits is needed.
        part = part.to(operand).masked_fill(ignored, 0)
        logits = project(part, matrix, shift, buffer[: len(part)])
        answer = answer[:, None].masked_fill(ignored, 0)
        loss, nll = _to_gradient(logits, answer, smoothing)
        totals.append(loss.masked_fill(ignored, 0))
        nlls.append(nll.masked_fill(ignored, 0))
        grad_logits = logits.to(operand) if any(wanted) else logits
        if wanted[0]:
            grad = torch.mm(grad_logits, matrix).masked_fill_(ignored, 0)
            grad_rows.append(grad.to(rows.dtype))
        if wanted[1]:
            grad_weight = accumulate(grad_weight, grad_logits.t(), part, weight.dtype)
        if wanted[2] and bias is not None:
            counted = (~ignored).to(operand).t()
            grad_bias = accumulate(grad_bias, counted, grad_logits, bias.dtype)
    gradients = (
        torch.cat(grad_rows) if wanted[0] else None,
        grad_weight,
        None if grad_bias is None else grad_bias[0],
    )
    return torch.cat(totals).sum(), torch.cat(nlls).sum(), gradients


def project(part: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Write the logits of (rows, width) into `out`."""
    if out.dtype != part.dtype:
        return out.copy_(F.linear(part, weight, bias))
    if bias is None:
        return torch.mm(part, weight.t(), out=out)
    return torch.addmm(bias, part, weight.t(), out=out)


def _to_gradient(logits: Tensor, answer: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Turn logits into the gradient of the loss, in place.

    Args:
        logits: (rows, vocabulary).
        answer: (rows, 1).
        smoothing: Share of the target that is spread.

    Returns:
        The losses with and without smoothing, both (rows, 1).
    """
    picked = logits.gather(-1, answer)
    mean = logits.mean(-1, keepdim=True) if smoothing else picked
    largest = logits.amax(-1, keepdim=True)
    torch.softmax(logits, -1, out=logits)
    # The likeliest token's probability is exp(largest) over the sum of exponentials.
    log_total = largest - logits.amax(-1, keepdim=True).log()
    nll = log_total - picked
    if smoothing:
        logits.sub_(smoothing / logits.shape[-1])
    logits.scatter_add_(-1, answer, torch.full_like(picked, smoothing - 1))
    return (1 - smoothing) * nll + smoothing * (log_total - mean), nll


def accumulate(total: Tensor | None, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Add `left @ right` to the total in place; the first product is the first total."""
    if total is None:
        return torch.mm(left, right).to(dtype)
    if total.dtype == left.dtype:
        # `addmm_` does the same, and torch's FlopCounterMode does not count it.
        return torch.addmm(total, left, right, out=total)
    return total.add_(torch.mm(left, right))


def count_numbers(numbers: np.ndarray, size: int) -> np.ndarray:
    """Return how often each of 0 ... size - 1 occurs, (size,)."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(numbers), PIECE):
        counts += np.bincount(numbers[start : start + PIECE], minlength=size)
    return counts


def count_targets(
    batches: Iterable[Mapping[str, Any]], size: int, limit: int | None = None
) -> np.ndarray:
    """Return how often each of `size` tokens is a target of the first batches, (size,).

    Negative targets are not asked for.
    """
    counts = np.zeros(size, np.int64)
    for batch in islice(batches, limit):
        targets = batch["targets"].numpy().reshape(-1)
        counts += count_numbers(targets[targets >= 0], size)
    return counts


def frequency_nats(
    train: np.ndarray, asked: np.ndarray, allowed: np.ndarray | None = None
) -> float:
    """Return the summed cross-entropy, in nats, of answering with the training frequencies.

    Args:
        train: How often each number occurs in training, (size,). One is added to each count.
        asked: How often each is asked for, (size,).
        allowed: True for numbers that can be asked for, (size,); the others have no share.
    """
    counts = (train + 1.0) * (True if allowed is None else allowed)
    there = asked > 0
    return float(-(asked[there] * np.log(counts[there] / counts.sum())).sum())


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off on a tensor's device; "meta", which has none, needs no turning off."""
    kind = tensor.device.type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
