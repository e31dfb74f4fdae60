"""Stems, poolings, features of every layer."""

import pytest
import torch
from torch.nn import functional as F

from magneto.nn.embedding import ConvolutionalStem, PatchEmbedding
from magneto.vision.frozen_features import (
    NEIGHBOURS,
    layer_features,
    linear_accuracy,
    neighbour_accuracy,
)
from tests.unit.vision.small import small_classifier


@pytest.mark.parametrize("patch", [1, 3, 4, 16])
def test_a_convolutional_stem_has_a_vector_for_each_patch(patch: int) -> None:
    images = torch.randn(2, 2, 5 * patch, 5 * patch)
    stem = ConvolutionalStem(2, patch, 32)
    assert stem(images).shape == PatchEmbedding(2, patch, 32)(images).shape
    # A vector stands where its patch does: no far pixel moves it as much.
    pixels = images.clone().requires_grad_()
    stem(pixels)[:, 0].square().sum().backward()
    assert pixels.grad is not None
    seen = pixels.grad.abs().mean((0, 1))
    assert seen[:patch, :patch].mean() > 3 * seen[-patch:, -patch:].mean()


def test_poolings_are_what_they_say() -> None:
    images = torch.randn(2, 3, 8, 8)
    first = small_classifier(pooling="first", stem="convolutions")
    features = first.encoder(first.embed(images))
    assert features.shape == (2, 5, 16)
    assert torch.equal(first(images), first.head(features[:, 0]))
    assert (first(images).softmax(1) - 1 / 3).abs().max() < 0.01

    mean = small_classifier()
    expected = mean.head(mean.encoder(mean.embed(images))[:, 1:].mean(1))
    assert torch.allclose(mean(images), expected)

    late = small_classifier(pooling="mean_then_norm")
    weights = mean.state_dict().items()
    late.load_state_dict({n.replace("encoder.final_norm", "pooled_norm"): t for n, t in weights})
    assert not torch.allclose(late(images), mean(images))
    normed = F.layer_norm(late.encoder(late.embed(images))[:, 1:].mean(1), (16,))
    assert torch.allclose(late(images), late.head(normed), atol=1e-6)


def test_every_layer_s_features() -> None:
    model, images = small_classifier(), torch.randn(3, 3, 8, 8)
    found = layer_features(model, images)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "class_token": (3, 3, 16), "mean": (3, 3, 16),
    }  # fmt: skip
    x = model.embed(images)
    last = F.layer_norm(model.encoder.features(x, [1])[0], (16,))
    torch.testing.assert_close(found["class_token"][2], last[:, 0])
    torch.testing.assert_close(found["mean"][2], last[:, 1:].mean(1))
    torch.testing.assert_close(found["mean"][0], F.layer_norm(x, (16,))[:, 1:].mean(1))
    assert list(layer_features(small_classifier(class_token="none"), images)) == ["mean"]


def test_probes() -> None:
    """Of one class alone; one equal image outvotes all others, which are less alike."""
    pytest.importorskip("sklearn")
    some = torch.randn(4, 3)
    assert linear_accuracy(some, torch.ones(4).long(), some, torch.tensor([1, 1, 0, 1])) == 0.75
    known = torch.cat((torch.tensor([[1.0, 0]]), torch.tensor([[0.5, 1]]).expand(NEIGHBOURS, 2)))
    labels, asked = torch.tensor([0] + [1] * NEIGHBOURS), torch.tensor([[1.0, 0.0]])
    assert neighbour_accuracy(known, labels, asked, torch.tensor([0])) == 1
    assert neighbour_accuracy(known[1:], labels[1:], asked, torch.tensor([0])) == 0
