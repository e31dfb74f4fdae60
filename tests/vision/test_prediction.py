"""What a model says of images."""

import pytest
import torch
from torch import nn

from magneto.vision.prediction import class_predictions


def test_probabilities_of_all_classes_the_largest_first() -> None:
    model = nn.Linear(2, 3)
    images = torch.randn(4, 2)
    found = class_predictions(model, images, ["cat", "dog"])
    shares = model(images).softmax(1).detach()
    for row, prediction in zip(shares, found, strict=True):
        assert [share for _, share in prediction.labels] == sorted(row.tolist(), reverse=True)
        assert dict(prediction.labels)["dog"] == pytest.approx(float(row[1]))
        assert {name for name, _ in prediction.labels} == {"cat", "dog", "2"}
        assert prediction.pictures == {}
