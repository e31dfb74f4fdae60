"""Class token and poolings of the image classifier."""

import pytest
import torch

from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig

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


def test_patches_are_read_alone_and_must_divide_the_image() -> None:
    sizes = {"width": 32, "heads": 4, "ffn_width": 48, "layers": 2, "channels": 1, "classes": 10}
    model = ImageClassifier(ImageClassifierConfig(**sizes, image_size=8, patch_size=2))
    images = torch.randn(5, 1, 8, 8)
    moved = images.clone()
    moved[:, :, :2, :2] = 0
    assert torch.equal(model.embedding(moved)[:, 5], model.embedding(images)[:, 5])
    loss = torch.nn.functional.cross_entropy(model(images), torch.arange(5))
    assert loss.item() == pytest.approx(2.3026, abs=0.05)
    with pytest.raises(ValueError, match="must divide image_size"):
        ImageClassifierConfig(**sizes, image_size=9, patch_size=2)
