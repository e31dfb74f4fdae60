"""Losses that can be added up over micro-batches: sums over the number of labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.functional.cross_entropy import IGNORED


def divided(total: Tensor, count: Tensor | int, wanted: Tensor | int | None) -> Tensor:
    """Return a mean loss: a sum over what it counts, or over the number that Trainer gives.

    Trainer gives the number of labels of all micro-batches of a step, and adds the losses up.
    """
    number = torch.as_tensor(count if wanted is None else wanted, device=total.device)
    return total / number.clamp(min=1)


def token_loss(logits: Tensor, labels: Tensor, number: Tensor | int | None) -> Tensor:
    """Return the cross-entropy of tokens.

    Args:
        logits: (batch, length, vocab_size).
        labels: (batch, length), -100 for none.
        number: What the summed loss is divided by; None for the number of labels.
    """
    rows, answers = logits.flatten(0, -2).float(), labels.flatten().to(logits.device)
    total = F.cross_entropy(rows, answers, ignore_index=IGNORED, reduction="sum")
    return divided(total, (answers != IGNORED).sum(), number)


def classification_loss(
    logits: Tensor, labels: Tensor, config: Any, number: Tensor | int | None
) -> Tensor:
    """Return the loss of one answer per input, as `config.problem_type` says.

    Args:
        logits: (batch, num_labels).
        labels: "single_label_classification": (batch,) numbers of classes, -100 for none; the loss
            is the cross-entropy. "multi_label_classification": (batch, num_labels) of 0 and 1; the
            binary cross-entropy. "regression": (batch, num_labels), or (batch,) of one number; the
            squared error.
        config: Of the model; without a problem type it gets the one that the labels speak for.
        number: What the summed loss is divided by, Trainer's `num_items_in_batch`; None for the
            number of labels.

    Raises:
        ValueError: If labels and logits do not fit together.
    """
    if config.problem_type is None:
        config.problem_type = _problem_type(labels, config.num_labels)
    logits, labels = logits.float(), labels.to(logits.device)
    if config.problem_type == "single_label_classification":
        total = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return divided(total, (labels != IGNORED).sum(), number)
    if labels.numel() != logits.numel():
        raise ValueError(f"labels are {tuple(labels.shape)}, the answers {tuple(logits.shape)}")
    error = {
        "regression": F.mse_loss,
        "multi_label_classification": F.binary_cross_entropy_with_logits,
    }[config.problem_type]
    total = error(logits, labels.reshape(logits.shape).float(), reduction="sum")
    return divided(total, labels.numel(), number)


def _problem_type(labels: Tensor, num_labels: int) -> str:
    if num_labels == 1:
        return "regression"
    whole = labels.dtype in (torch.long, torch.int)
    return "single_label_classification" if whole else "multi_label_classification"
