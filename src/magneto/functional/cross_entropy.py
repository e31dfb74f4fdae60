"""Cross-entropy loss of a linear output layer, and sums for metrics.

To save memory, `linear_cross_entropy` computes the logits in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
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
"""Target that is excluded from the loss."""

CHUNK = 1024
"""Default number of rows of logits in memory at once."""
# Processor time of a training step relative to that with all logits at once (fp32, width 256, one
# thread), by rows per chunk:
#   vocabulary, tokens of a step    256   512  1024  2048  4096
#    8192,                  1024   0.86  0.86  0.84
#    8192,                  4096   0.92  0.85  0.85  0.90  0.89
#   50257,                  4096   0.79  0.85  0.80  0.86  0.89

# Tokens counted at a time, so that a memory-mapped corpus is never in memory as 64-bit integers.
PIECE = 1 << 24


@dataclass(frozen=True)
class CrossEntropyLoss:
    """Summed cross-entropy in nats, and the number of targets.

    Attributes:
        total: Summed loss to minimise, a scalar with a gradient.
        count: Number of targets that are not `IGNORED`.
        nll: Summed loss without label smoothing, a scalar without a gradient.
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

    The loss can be differentiated only once. Under autocast, matrix products are in autocast's
    type, but the softmax is in fp32.

    Args:
        features: Inputs of the linear layer, (..., width).
        weight: Weight of the linear layer, (vocabulary, width).
        targets: Targets in [0, vocabulary) or `IGNORED`, (...).
        bias: Bias of the linear layer, (vocabulary,).
        chunk: Number of rows of logits in memory at once; 0 for all.
        smoothing: Label smoothing e (arXiv 1512.00567, section 7). With V tokens, the target
            distribution has 1 - e + e/V at the target token and e/V elsewhere.

    Raises:
        ValueError: If the shape of `targets` is not `features.shape[:-1]`.
    """
    if targets.shape != features.shape[:-1]:
        raise ValueError(
            f"targets must have the shape {tuple(features.shape[:-1])}, not {tuple(targets.shape)}"
        )
    operand = operand_type(weight)
    rows, answers = features.flatten(0, -2), targets.flatten()
    given = (rows, weight, bias, answers, chunk or max(1, len(rows)), smoothing, operand)
    if torch.is_grad_enabled():
        total, nll = cast(tuple[Tensor, Tensor], _LinearCrossEntropy.apply(*given))
    else:
        total, nll, _ = _loss_and_gradients(*given, wanted=(False, False, False))
    return CrossEntropyLoss(total, (answers != IGNORED).sum(), nll)


class _LinearCrossEntropy(torch.autograd.Function):
    """Summed loss, with gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        total, nll, gradients = _loss_and_gradients(*given, wanted=ctx.needs_input_grad[:3])
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_total: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        # Not in place, since another backward pass may follow.
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
    """Return the loss with and without smoothing, and the gradients of the smoothed loss.

    `rows` are the features, (n, width), and `answers` are the targets, (n,). The flags in `wanted`
    request the gradients of rows, weight and bias, in this order.
    """
    matrix, shift = weight.to(operand), None if bias is None else bias.to(operand)
    # One buffer for all chunks: the first touch of a large new one is slow.
    buffer = torch.empty(
        min(chunk, len(rows)), len(weight), device=rows.device,
        dtype=torch.promote_types(operand, torch.float32),
    )  # fmt: skip
    totals, nlls, grad_rows, grad_weight, grad_bias = [], [], [], None, None
    for part, answer in zip(rows.split(chunk), answers.split(chunk), strict=True):
        ignored = (answer == IGNORED)[:, None]
        # Ignored rows and their gradients are zeroed here and below, without a pass over logits.
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
    """Write the logits of `part` (rows, width) into `out`."""
    if out.dtype != part.dtype:
        return out.copy_(F.linear(part, weight, bias))
    if bias is None:
        return torch.mm(part, weight.t(), out=out)
    return torch.addmm(bias, part, weight.t(), out=out)


def _to_gradient(logits: Tensor, answer: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Convert logits (rows, vocabulary) to the gradient of the loss, in place.

    `answer` has the targets, (rows, 1). Returns the losses with and without smoothing, (rows, 1).
    """
    picked = logits.gather(-1, answer)
    mean = logits.mean(-1, keepdim=True) if smoothing else picked
    log_total = softmax_(logits)
    nll = log_total - picked
    if smoothing:
        logits.sub_(smoothing / logits.shape[-1])
    logits.scatter_add_(-1, answer, torch.full_like(picked, smoothing - 1))
    return (1 - smoothing) * nll + smoothing * (log_total - mean), nll


def softmax_(logits: Tensor) -> Tensor:
    """Convert logits (..., vocabulary) to probabilities in place.

    Returns the logarithm of each row's sum of exponentials, (..., 1).
    """
    largest = logits.amax(-1, keepdim=True)
    torch.softmax(logits, -1, out=logits)
    # The largest probability is exp(largest) divided by the sum of exponentials.
    return largest - logits.amax(-1, keepdim=True).log()


def accumulate(total: Tensor | None, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Add `left @ right` to `total` in place, and return the sum; None counts as 0."""
    if total is None:
        return torch.mm(left, right).to(dtype)
    if total.dtype == left.dtype:
        # torch's FlopCounterMode counts this, and not the equivalent `addmm_`.
        return torch.addmm(total, left, right, out=total)
    return total.add_(torch.mm(left, right))


def target_log_probabilities(
    logits: Callable[[Tensor], Tensor], features: Tensor, targets: Tensor
) -> Tensor:
    """Return the log-probability of each target in float64, (rows,); 0 for `IGNORED`.

    `logits` maps features (rows, width) to logits (rows, vocabulary).
    """
    parts = [
        -F.cross_entropy(logits(rows).float(), some, ignore_index=IGNORED, reduction="none")
        for rows, some in zip(features.split(CHUNK), targets.split(CHUNK), strict=True)
    ]
    return torch.cat(parts).double()


def count_numbers(numbers: np.ndarray, size: int) -> np.ndarray:
    """Return how often each number from 0 to size - 1 occurs, (size,)."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(numbers), PIECE):
        counts += np.bincount(numbers[start : start + PIECE], minlength=size)
    return counts


def count_targets(
    batches: Iterable[Mapping[str, Any]], size: int, limit: int | None = None
) -> np.ndarray:
    """Return the number of occurrences of each token as a target, (size,).

    Only the first `limit` batches are read; None reads all. Negative targets are not counted.
    """
    counts = np.zeros(size, np.int64)
    for batch in islice(batches, limit):
        targets = batch["targets"].numpy().reshape(-1)
        counts += count_numbers(targets[targets >= 0], size)
    return counts


def prediction_sums(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the summed loss in nats, and the numbers of right predictions and of targets.

    Targets that are `IGNORED` are left out.
    """
    logits = logits.float()
    return {
        "loss": F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"),
        "right": (logits.argmax(-1) == targets).sum(),
        "count": (targets != IGNORED).sum(),
    }


def loss_metrics(sums: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean loss, and the perplexity, which is at most exp(700)."""
    loss = sums["loss"] / sums["count"]
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


def frequency_sums(
    train: np.ndarray, asked: np.ndarray, allowed: np.ndarray | None = None
) -> dict[str, float]:
    """Return `prediction_sums` of a baseline that predicts the frequencies of the training data.

    Args:
        train: How often each class (such as a token) occurs in the training data, (size,). The
            function adds 1 to each count.
        asked: How often each class is a target, (size,).
        allowed: True for each class that can be a target, (size,). Other classes get the
            probability 0.
    """
    counts = (train + 1.0) * (True if allowed is None else allowed)
    present = asked > 0
    nats = -(asked[present] * np.log(counts[present] / counts.sum())).sum()
    return {
        "loss": float(nats),
        "right": float(asked[counts.argmax()]),
        "count": float(asked.sum()),
    }


def operand_type(weight: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with `weight`: autocast's, or else the weight's own."""
    kind = weight.device.type
    # Autocast knows no meta device. torch.amp.is_autocast_available cannot be traced by torch 2.11.
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return weight.dtype
    return torch.get_autocast_dtype(kind)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    kind = tensor.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
