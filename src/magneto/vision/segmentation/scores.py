"""Scores of segmentation, from one confusion matrix over all pixels of a data set.

Means are over classes, of a whole set: the mean of each image's own scores is another number. They
are mmsegmentation's mIoU, mAcc and aAcc.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from magneto.vision.segmentation.config import IGNORED


def confusion(labels: Tensor, answers: Tensor, classes: int) -> Tensor:
    """Count pixels by class and answer, without waiting for the device.

    Args:
        labels: Classes of pixels, `IGNORED` for none, any shape.
        answers: What was answered, of the same shape.
        classes: How many there are.

    Returns:
        int64 (classes, classes): row by what a pixel is, column by what it was taken for.
    """
    pair = labels.long() * classes + answers
    last = torch.full_like(pair, classes * classes)
    cells = torch.where(labels == IGNORED, last, pair).flatten()
    counts = torch.zeros(classes * classes + 1, dtype=torch.long, device=cells.device)
    return counts.index_add_(0, cells, torch.ones_like(cells))[:-1].view(classes, classes)


def segmentation_scores(
    matrix: Sequence[Sequence[float]], names: Sequence[str]
) -> dict[str, float]:
    """Return the scores of a confusion matrix.

    Args:
        matrix: Of `confusion`, added up over a data set.
        names: Of the classes.

    Returns:
        "mean_iou": the mean over classes of intersection over union; a class that neither is nor
        was answered anywhere is left out. "mean_accuracy": the mean over the classes that are there
        of the share of its pixels that are right. "pixel_accuracy": the share of all pixels. And
        "iou_NAME" of each class that is not left out.

    Raises:
        ValueError: If no pixel has a class.
    """
    counts = np.asarray(matrix, np.float64)
    if not counts.sum():
        raise ValueError("no pixel of the masks has a class: all are ignored")
    right, there, answered = counts.diagonal(), counts.sum(1), counts.sum(0)
    union = there + answered - right
    known = union > 0
    iou = right[known] / union[known]
    return {
        "mean_iou": float(iou.mean()),
        "pixel_accuracy": float(right.sum() / counts.sum()),
        "mean_accuracy": float((right[there > 0] / there[there > 0]).mean()),
        **{
            f"iou_{name}": float(value)
            for name, value in zip(np.array(names, object)[known], iou, strict=True)
        },
    }
