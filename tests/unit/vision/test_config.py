"""What no model and no data of images can be, in words; the paper's recipes."""

from operator import attrgetter
from typing import Any

import pytest
import torch

from magneto.recipe import load_recipe
from magneto.vision.config import (
    AugmentationConfig,
    ImageClassifierConfig,
    ImageDataConfig,
    ImageModelConfig,
    ImageModellingDataConfig,
    ImageTokenizerConfig,
    PairedAugmentationConfig,
    SegmenterConfig,
)
from magneto.vision.masked_modelling import MaskedImageModel
from magneto.vision.tokenizer import TokenizerDistillation
from tests.unit.vision.small import SEGMENTER

SIZES: dict[str, Any] = {
    "width": 16, "layers": 3, "heads": 2, "ffn_width": 32, "image_size": 8, "patch_size": 2,
}  # fmt: skip
LEARNED = {"class_token": "learned", "positions": "learned"}
# What is set, of which configuration, and the words of the error.
WRONG: list[tuple[type, dict[str, Any], str]] = [
    (ImageClassifierConfig, {**SIZES, "pooling": "first"}, "needs class_token 'learned'"),
    (ImageClassifierConfig, {**SIZES, **LEARNED, "max_length": 4}, "must be at least 17"),
    (ImageClassifierConfig, {**SIZES, "image_size": 9}, r"\(2\) must divide image_size \(9\)"),
    (ImageTokenizerConfig, {"teacher": "clop"}, "hog, pixels, clip:PATH.*not 'clop'"),
    (ImageModelConfig, {**SIZES, "aggregation_layer": 3}, r"below layers \(3\), not 3"),
    (ImageModelConfig, {"aggregation_layer": 1, "class_token": "none"}, "class_token 'learned'"),
    (ImageModelConfig, {"stem": "convolutions"}, "stem must be linear"),
    (SegmenterConfig, {**SEGMENTER, "image_size": 4, "stride": 4}, "image_size must be 8 or more"),
    (SegmenterConfig, {**SEGMENTER, "stride": 17}, r"stride must be 1 to image_size \(16\)"),
    (SegmenterConfig, {**SEGMENTER, "feature_layers": (0, 1, 2, 4)}, "to the top layer, 3"),
    (SegmenterConfig, {**SEGMENTER, "feature_layers": (0, 2, 1, 3)}, "feature_layers must rise"),
    (SegmenterConfig, {**SEGMENTER, "pool_scales": ()}, "pool_scales must have"),
    (AugmentationConfig, {"crop_scale": (0.5, 0.2)}, "crop_scale must be a range"),
    (PairedAugmentationConfig, {"resize": (2.0, 1.0)}, "resize must be a range"),
    (ImageDataConfig, {"source": "builtin:digit"}, "builtin:digits, builtin:scenes"),
    (ImageModellingDataConfig, {"image_tokenizer": ""}, "image_tokenizer must be"),
]


def test_what_can_not_be_is_said() -> None:
    for kind, values, words in WRONG:
        with pytest.raises(ValueError, match=words):
            kind(**values)


def test_features_are_of_layers_spread_over_the_depth() -> None:
    spread = {layers: SegmenterConfig(layers=layers).read_layers for layers in (1, 2, 4, 12)}
    assert spread == {1: (0, 0, 0, 0), 2: (0, 0, 0, 1), 4: (0, 1, 2, 3), 12: (2, 5, 8, 11)}


def test_what_only_data_tells_has_to_be_known() -> None:
    with pytest.raises(ValueError, match="codes is not set"):
        MaskedImageModel(ImageModelConfig(**SIZES, max_length=17))
    with pytest.raises(ValueError, match="target_width is not set"):
        TokenizerDistillation(ImageTokenizerConfig(**SIZES))


# As BEiT v2's released configurations have it, which the paper's tables go by.
ADE20K = {
    "model.classes": 150, "model.inference": "slide", "model.image_size": 512, "model.stride": 341,
    "model.pool_scales": (1, 2, 3, 6), "model.auxiliary_weight": 0.4,
    "model.auxiliary_channels": 256, "model.auxiliary_level": 2, "training.steps": 160_000,
    "training.batch_size": 16, "training.warmup_steps": 1500, "training.betas": (0.9, 0.999),
    "training.weight_decay": 0.05, "training.schedule": "linear", "data.reduce_zero_label": True,
    "data.fit": (2048, 512),
    "data.augmentation.resize": (0.5, 2.0), "data.augmentation.largest_share": 0.75,
    "data.normalisation": "imagenet",
}  # fmt: skip
IMAGENET = {
    "training.batch_size": 1024, "training.final_learning_rate": 1e-6,
    "training.betas": (0.9, 0.999), "training.eps": 1e-8, "training.weight_decay": 0.05,
    "training.clip_norm": None, "training.ema_decay": None, "model.label_smoothing": 0.1,
    "model.pooling": "mean_then_norm", "model.objective": "cross_entropy", "model.dropout": 0,
    "model.image_size": 224, "data.mixup": 0.8, "data.cutmix": 1.0, "data.resize": 256,
    "data.augmentation.erasing": 0.25, "data.augmentation.rand_augment": 9,
    "data.augmentation.rand_augment_std": 0.5, "data.augmentation.repeats": 1,
}  # fmt: skip
FINE_TUNED: dict[str, dict[str, Any]] = {
    "segmentation/ade20k-base": {
        **ADE20K, "model.feature_layers": (3, 5, 7, 11), "model.head_channels": 768,
        "training.learning_rate": 5e-5, "model.layer_decay": 0.75, "model.drop_path": 0.15,
    },
    "segmentation/ade20k-large": {
        **ADE20K, "model.feature_layers": (7, 11, 15, 23), "model.head_channels": 1024,
        "training.learning_rate": 4e-5, "model.layer_decay": 0.9, "model.drop_path": 0.2,
    },
    "image-classification/imagenet-base": {
        **IMAGENET, "training.learning_rate": 5e-4, "model.layer_decay": 0.65,
        "model.drop_path": 0.1, "training.epochs": 100, "training.warmup_ratio": 0.2,
    },
    "image-classification/imagenet-large": {
        **IMAGENET, "training.learning_rate": 3e-4, "model.layer_decay": 0.8,
        "model.drop_path": 0.2, "training.epochs": 50, "training.warmup_ratio": 0.1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FINE_TUNED)
def test_the_papers_fine_tuning(name: str) -> None:
    recipe = load_recipe(name, {"model.pretrained": "runs/x"})
    expected = FINE_TUNED[name]
    assert {field: attrgetter(field)(recipe) for field in expected} == expected


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
