"""Scores of image classification as sums: right answers, the best five, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Bins of the expected calibration error, of equal width (arXiv 1706.04599).
BINS = 15


def answer_sums(logits: Tensor, accepted: Tensor, broken: Tensor) -> dict[str, Tensor]:
    """Return what a batch adds to the scores.

    Args:
        logits: (batch, classes), float32; -inf where a class is no candidate.
        accepted: (batch, classes), True where a class is right. An image that has none does not
            count.
        broken: (batch), True for an image that could not be read; its answer is wrong.
    """
    counted, readable = accepted.any(1), ~broken
    best = logits.topk(min(5, logits.shape[1]), 1).indices
    hits = accepted.gather(1, best) & (counted & readable)[:, None]
    confidence = logits.softmax(1).amax(1)
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    per_bin = torch.stack((counted, confidence * counted, hits[:, 0]), 1).double()
    bins = torch.zeros(BINS, 3, dtype=torch.float64, device=logits.device)
    return {
        "right": hits[:, 0].sum(),
        "right_in_five": hits.any(1).sum(),
        "count": counted.sum(),
        "left_out": (~counted).sum(),
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
        the bin of their confidence; "broken" and "left_out" images, if there are any.
    """
    count = max(sums["count"], 1)
    found = {"loss": sums["loss"] / count, "accuracy": sums["right"] / count}
    if classes > 5:
        found["accuracy_top5"] = sums["right_in_five"] / count
    gaps = (abs(confidence - right) for _, confidence, right in sums["bins"])
    found["calibration_error"] = sum(gaps) / count
    return found | {name: sums[name] for name in ("broken", "left_out") if sums[name]}
