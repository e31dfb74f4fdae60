"""Class token and poolings of the image classifier."""

from typing import Any

import pytest
import torch

from magneto.vision.classification.config import ImageClassifierConfig
from magneto.vision.classification.model import ImageClassifier

SIZES = {
    "width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "image_size": 8, "patch_size": 4,
    "channels": 1, "classes": 3, "positions": "learned", "max_length": 5,
}  # fmt: skip


def build(**changes) -> ImageClassifier:
    torch.manual_seed(0)
    return ImageClassifier(ImageClassifierConfig(**{**SIZES, **changes})).eval()


def test_poolings_are_what_they_say() -> None:
    images = torch.randn(2, 1, 8, 8)
    model = build(class_token="learned", pooling="first")
    read = model.class_token(model.embedding(images))
    assert read.shape == (2, 5, 16)
    features = model.encoder(read)
    assert torch.equal(model(images), model.head(features[:, 0]))

    mean = build(class_token="learned", pooling="mean")
    expected = mean.head(mean.encoder(mean.class_token(mean.embedding(images)))[:, 1:].mean(1))
    assert torch.allclose(mean(images), expected)

    late = build(class_token="learned", pooling="mean_then_norm")
    late.load_state_dict(
        {
            name.replace("encoder.final_norm", "pooled_norm"): tensor
            for name, tensor in mean.state_dict().items()
        }
    )
    assert not torch.allclose(late(images), mean(images))
    unnormed = late.encoder(late.class_token(late.embedding(images)))[:, 1:].mean(1)
    normed = torch.nn.functional.layer_norm(unnormed, (16,))
    assert torch.allclose(late(images), late.head(normed), atol=1e-6)


@pytest.mark.parametrize("placement", ["post", "deepnorm"])
def test_without_a_last_norm_the_mean_stays_as_it_is(placement: str) -> None:
    images = torch.randn(2, 1, 8, 8)
    one, other = (build(pooling=name, placement=placement) for name in ("mean", "mean_then_norm"))
    assert torch.equal(one(images), other(images))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pooling": "first"}, "needs class_token 'learned'"),
        ({"class_token": "learned", "max_length": 4}, "max_length must be at least 5"),
    ],
)
def test_impossible_poolings(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(**changes)


def test_a_distillation_token_has_a_place_and_a_head_of_its_own() -> None:
    sizes: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 24, "classes": 3}
    images: dict[str, Any] = {"image_size": 8, "patch_size": 4, "class_token": "learned"}
    config = ImageClassifierConfig(
        **sizes, **images, distillation_token="learned", pooling="first_two"
    )
    assert (config.prefix, config.length, config.grid.length) == (2, 6, 6)
    torch.manual_seed(0)
    model = ImageClassifier(config)
    for token, value in ((model.class_token.first, 1.0), (model.class_token.second, 2.0)):
        torch.nn.init.constant_(token.vector, value)
    entered = model.class_token(model.embedding(torch.randn(1, 3, 8, 8)))
    assert entered[0, :2, 0].tolist() == [1, 2]
    x = torch.randn(4, 3, 8, 8)
    features = model.encoder(model.class_token(model.embedding(x)))
    one, other = model.head.class_head, model.head.distillation_head
    expected = (one(features[:, 0]) + other(features[:, 1])) / 2
    assert torch.equal(model(x), expected)
    with pytest.raises(ValueError, match="'first_two' needs distillation_token 'learned'"):
        ImageClassifierConfig(**images, pooling="first_two")
    with pytest.raises(ValueError, match="distillation_token 'learned' needs class_token"):
        ImageClassifierConfig(distillation_token="learned")
