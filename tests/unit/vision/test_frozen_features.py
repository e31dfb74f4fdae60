"""Frozen features: layer by layer, by a linear probe and by nearest neighbours."""

import pytest
import torch
from torch.nn import functional as F

from magneto.vision.config import ImageClassifierConfig
from magneto.vision.encoder import ImageClassifier
from magneto.vision.frozen_features import (
    NEIGHBOURS,
    layer_features,
    linear_accuracy,
    neighbour_accuracy,
)

pytest.importorskip("sklearn")


def model(class_token: str = "learned") -> ImageClassifier:
    config = ImageClassifierConfig(
        width=16, layers=2, heads=2, ffn_width=24, image_size=8, patch_size=4, classes=3,
        class_token=class_token, positions="learned", max_length=5,
    )  # fmt: skip
    return ImageClassifier(config).eval()


def test_every_layer_s_features() -> None:
    made, images = model(), torch.randn(3, 3, 8, 8)
    found = layer_features(made, images)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "class_token": (3, 3, 16), "mean": (3, 3, 16),
    }  # fmt: skip
    x = made.class_token(made.embedding(images))
    last = F.layer_norm(made.encoder.features(x, [1])[0], (16,))
    torch.testing.assert_close(found["class_token"][2], last[:, 0])
    torch.testing.assert_close(found["mean"][2], last[:, 1:].mean(1))
    torch.testing.assert_close(found["mean"][0], F.layer_norm(x, (16,))[:, 1:].mean(1))
    assert list(layer_features(model("none"), images)) == ["mean"]


def test_nearer_neighbours_weigh_more() -> None:
    """One equal image outvotes all others, which are of another class and less alike."""
    known = torch.cat((torch.tensor([[1.0, 0]]), torch.tensor([[0.5, 1]]).expand(NEIGHBOURS, 2)))
    labels = torch.tensor([0] + [1] * NEIGHBOURS)
    asked = torch.tensor([[1.0, 0.0]])
    assert neighbour_accuracy(known, labels, asked, torch.tensor([0])) == 1
    assert neighbour_accuracy(known[1:], labels[1:], asked, torch.tensor([0])) == 0


def test_one_class_alone() -> None:
    some = torch.randn(4, 3)
    assert linear_accuracy(some, torch.ones(4).long(), some, torch.tensor([1, 1, 0, 1])) == 0.75
