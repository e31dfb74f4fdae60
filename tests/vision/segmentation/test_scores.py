"""The confusion matrix and its scores, against scikit-learn and numbers made by hand."""

import numpy as np
import pytest
import torch

from magneto.vision.segmentation import confusion, segmentation_scores

NAMES = ["sky", "road", "tree", "car"]


def test_confusion_is_scikit_learn_s() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (3, 20, 30), generator=generator, dtype=torch.uint8)
    answers = torch.randint(4, (3, 20, 30), generator=generator)
    labels[:, :5] = 255
    matrix = confusion(labels, answers, 4)
    known = labels != 255
    assert matrix.tolist() == metrics.confusion_matrix(labels[known], answers[known]).tolist()
    found = segmentation_scores(matrix.tolist(), NAMES)
    iou = metrics.jaccard_score(labels[known], answers[known], average=None)
    assert [found[f"iou_{name}"] for name in NAMES] == pytest.approx(iou)
    assert found["mean_iou"] == pytest.approx(iou.mean())
    recall = metrics.balanced_accuracy_score(labels[known], answers[known])
    assert found["mean_accuracy"] == pytest.approx(recall)
    assert found["pixel_accuracy"] == pytest.approx(
        metrics.accuracy_score(labels[known], answers[known])
    )


def test_a_class_that_is_nowhere_is_left_out() -> None:
    """Not counted as 0, nor as 1; one that is only answered counts as 0."""
    matrix = np.array([[8, 0, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 10]])
    found = segmentation_scores(matrix.tolist(), NAMES)
    assert "iou_road" not in found and found["iou_tree"] == 0
    assert found["mean_iou"] == pytest.approx((0.8 + 0 + 1) / 3)
    assert found["mean_accuracy"] == pytest.approx((0.8 + 1) / 2)
    assert found["pixel_accuracy"] == pytest.approx(18 / 20)


def test_the_mean_is_of_the_whole_set() -> None:
    """Two images, of a small and a large area: adding up first is not the mean of both."""
    small = torch.tensor([[9, 1], [0, 0]])
    large = torch.tensor([[0, 90], [0, 900]])
    together = segmentation_scores((small + large).tolist(), NAMES[:2])["mean_iou"]
    apart = [segmentation_scores(m.tolist(), NAMES[:2])["mean_iou"] for m in (small, large)]
    assert together == pytest.approx((9 / 100 + 900 / 991) / 2)
    assert abs(together - sum(apart) / 2) > 0.01


def test_nothing_but_ignored_pixels() -> None:
    matrix = confusion(torch.full((2, 3), 255, dtype=torch.uint8), torch.zeros(2, 3).long(), 4)
    assert not matrix.any()
    with pytest.raises(ValueError, match="all are ignored"):
        segmentation_scores(matrix.tolist(), NAMES)
