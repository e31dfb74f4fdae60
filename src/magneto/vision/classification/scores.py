"""Scores of image classification as sums: right answers, the best five, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Bins of the expected calibration error, of equal width (arXiv 1706.04599).
BINS = 15


def answer_sums(logits: Tensor, labels: Tensor, broken: Tensor) -> dict[str, Tensor]:
    """Return what a batch adds to the scores.

    Args:
        logits: (batch, classes), float32; -inf where a class is no candidate.
        labels: Classes that are right, (batch).
        broken: (batch), True for an image that could not be read; its answer is wrong.
    """
    best = logits.topk(min(5, logits.shape[1]), 1).indices
    hits = (best == labels[:, None]) & ~broken[:, None]
    confidence = logits.softmax(1).amax(1)
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    count = torch.ones_like(labels)
    per_bin = torch.stack((count, confidence, hits[:, 0]), 1).double()
    bins = torch.zeros(BINS, 3, dtype=torch.float64, device=logits.device)
    return {
        "right": hits[:, 0].sum(),
        "right_in_five": hits.any(1).sum(),
        "count": count.sum(),
        "broken": broken.sum(),
        "bins": bins.index_add(0, place, per_bin),
    }


def classification_scores(sums: Mapping[str, Any], classes: int) -> dict[str, float]:
    """Return the metrics of sums over all images.

    Args:
        sums: Of `answer_sums`, and "loss".
        classes: That the model has.

    Returns:
        "loss" and "accuracy"; "accuracy_top5" where there are more than five classes;
        "calibration_error", the mean over images of the distance between confidence and accuracy in
        the bin of their confidence; "broken" images, if there are any.
    """
    count = sums["count"]
    found = {"loss": sums["loss"] / count, "accuracy": sums["right"] / count}
    if classes > 5:
        found["accuracy_top5"] = sums["right_in_five"] / count
    gaps = (abs(confidence - right) for _, confidence, right in sums["bins"])
    found["calibration_error"] = sum(gaps) / count
    return found | ({"broken": sums["broken"]} if sums["broken"] else {})
