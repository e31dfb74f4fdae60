"""What makes vectors of patches."""

import pytest
import torch

from magneto.nn.embedding import ConvolutionalStem, PatchEmbedding
from magneto.vision.config import ImageClassifierConfig, ImageModelConfig
from magneto.vision.encoder import ImageClassifier

SHAPE = {"width": 32, "heads": 4, "layers": 1, "ffn_width": 48, "channels": 2, "classes": 3}


@pytest.mark.parametrize("patch", [1, 2, 3, 4, 6, 7, 16])
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


def test_the_stem_is_an_option_of_classifiers_and_none_where_patches_are_hidden() -> None:
    config = ImageClassifierConfig(**SHAPE, image_size=8, patch_size=4, stem="convolutions")
    assert ImageClassifier(config)(torch.randn(2, 2, 8, 8)).shape == (2, 3)
    with pytest.raises(ValueError, match="stem must be linear"):
        ImageModelConfig(image_size=8, patch_size=4, stem="convolutions")
