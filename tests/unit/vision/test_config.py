"""What no model and no data of images can be, in words; the paper's recipes."""

from typing import Any

import pytest
import torch

from magneto.recipe import load_recipe
from magneto.vision.config import (
    AugmentationConfig,
    ImageClassifierConfig,
    ImageDataConfig,
    ImageModelConfig,
    ImageTokenizerConfig,
    SegmenterConfig,
)
from tests.unit.vision.small import SEGMENTER

SIZES: dict[str, Any] = {
    "width": 16, "layers": 3, "heads": 2, "ffn_width": 32, "image_size": 8, "patch_size": 2,
}  # fmt: skip
# What is set, of which configuration, and the words of the error.
WRONG: list[tuple[type, dict[str, Any], str]] = [
    (ImageClassifierConfig, {**SIZES, "pooling": "first"}, "needs class_token 'learned'"),
    (ImageClassifierConfig, {**SIZES, "positions": "learned", "max_length": 4}, "at least 16"),
    (ImageClassifierConfig, {**SIZES, "image_size": 9}, r"\(2\) must divide image_size \(9\)"),
    (ImageTokenizerConfig, {"teacher": "clop"}, "hog, pixels, clip:PATH.*not 'clop'"),
    (ImageModelConfig, {**SIZES, "aggregation_layer": 3}, r"below layers \(3\), not 3"),
    (ImageModelConfig, {"stem": "convolutions"}, "stem must be linear"),
    (SegmenterConfig, {**SEGMENTER, "stride": 17}, r"stride must be 1 to image_size \(16\)"),
    (SegmenterConfig, {**SEGMENTER, "feature_layers": (0, 1, 2, 4)}, "to the top layer, 3"),
    (SegmenterConfig, {**SEGMENTER, "feature_layers": (0, 2, 1, 3)}, "feature_layers must rise"),
    (AugmentationConfig, {"crop_scale": (0.5, 0.2)}, "crop_scale must be a range"),
    (ImageDataConfig, {"source": "builtin:digit"}, "builtin:digits, builtin:scenes"),
]


def test_what_can_not_be_is_said() -> None:
    for kind, values, words in WRONG:
        with pytest.raises(ValueError, match=words):
            kind(**values)


def test_features_are_of_layers_spread_over_the_depth() -> None:
    spread = {layers: SegmenterConfig(layers=layers).read_layers for layers in (1, 2, 4, 12)}
    assert spread == {1: (0, 0, 0, 0), 2: (0, 0, 0, 1), 4: (0, 1, 2, 3), 12: (2, 5, 8, 11)}


# As BEiT v2's released configurations have it: rate, decay of layers, drop path, length.
FINE_TUNED = {
    "segmentation/ade20k-base": (5e-5, 0.75, 0.15, 160_000),
    "segmentation/ade20k-large": (4e-5, 0.9, 0.2, 160_000),
    "image-classification/imagenet-base": (5e-4, 0.65, 0.1, 100),
    "image-classification/imagenet-large": (3e-4, 0.8, 0.2, 50),
}


@pytest.mark.parametrize("name", FINE_TUNED)
def test_the_papers_fine_tuning(name: str) -> None:
    recipe = load_recipe(name, {"model.pretrained": "runs/x"})
    model, training = recipe.model, recipe.training
    length = training.epochs or training.steps
    found = training.learning_rate, model.layer_decay, model.drop_path, length
    assert found == FINE_TUNED[name]


# The paper's appendix, vision: millions of the backbone, Pre-LN and Sub-LN, and of the head.
@pytest.mark.parametrize(
    ("name", "pre", "sub", "head"),
    [("beit-base", 85.8, 85.9, 6.3), ("beit-large", 303.3, 303.5, 8.4)],
)
def test_the_papers_parameters(name: str, pre: float, sub: float, head: float) -> None:
    for placement, millions in (("pre", pre), ("sub", sub)):
        recipe = load_recipe(f"image-modelling/{name}", {"model.placement": placement})
        with torch.device("meta"):
            model: Any = recipe.build_task().build_model()
        own = sum(p.numel() for p in model.head.parameters())
        rest = sum(p.numel() for p in model.parameters()) - own
        assert round(own / 1e6, 1) == head
        assert rest / 1e6 == pytest.approx(millions, abs=0.051)
