"""Scores of image classification, by hand."""

import math

import pytest
import torch

from magneto.vision.classification import BINS, answer_sums, classification_scores

LOGITS = torch.tensor([[4.0, 0, 0, 0, 0, 0, 0], [0, 1.0, 2, 3, 4, 5, 6], [0, 9.0, 0, 0, 0, 0, 0]])


def sums(labels: list[int], broken: list[bool]) -> dict:
    found = answer_sums(LOGITS, torch.tensor(labels), torch.tensor(broken))
    return {name: value.tolist() for name, value in found.items()} | {"loss": 6.0}


def test_right_and_within_five() -> None:
    found = classification_scores(sums([0, 2, 3], [False] * 3), 7)
    assert found["loss"] == 2.0
    assert found["accuracy"] == pytest.approx(1 / 3)
    # In the third row five of six equal classes are among the best: which, nobody says.
    assert found["accuracy_top5"] in (pytest.approx(2 / 3), 1.0)
    assert "broken" not in found


def test_a_broken_image_is_wrong() -> None:
    found = classification_scores(sums([0, 6, 1], [True, False, False]), 7)
    assert found["accuracy"] == pytest.approx(2 / 3) and found["broken"] == 1


def test_calibration_error_by_hand() -> None:
    confidence = LOGITS.softmax(1).amax(1).tolist()
    right = [1.0, 0.0, 1.0]
    by_bin: dict[int, list[float]] = {}
    for sure, hit in zip(confidence, right, strict=True):
        by_bin.setdefault(math.ceil(sure * BINS), []).append(sure - hit)
    expected = sum(abs(sum(gaps)) for gaps in by_bin.values()) / 3
    found = classification_scores(sums([0, 2, 1], [False] * 3), 7)
    assert found["calibration_error"] == pytest.approx(expected, abs=1e-6)


def test_no_top_five_of_five_classes() -> None:
    assert "accuracy_top5" not in classification_scores(sums([0, 1, 2], [False] * 3), 5)
