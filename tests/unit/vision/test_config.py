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
    (ImageClassifierConfig, {"pooling": "first"}, "needs class_token 'learned'"),
    (ImageClassifierConfig, {**LEARNED, "max_length": 4}, "max_length must be at least 17"),
    (ImageClassifierConfig, {"image_size": 9}, r"patch_size \(2\) must divide image_size \(9\)"),
    (ImageTokenizerConfig, {"teacher": "clop"}, "'clop' is none: there are hog, pixels, clip:PATH"),
    (ImageModelConfig, {"aggregation_layer": 3}, r"below layers \(3\), not 3"),
    (ImageModelConfig, {"aggregation_layer": 1, "class_token": "none"}, "class_token 'learned'"),
    (SegmenterConfig, {"image_size": 4, "stride": 4}, "image_size must be 8 or more"),
    (SegmenterConfig, {"stride": 17}, r"stride must be 1 to image_size \(16\)"),
    (SegmenterConfig, {"feature_layers": (0, 1, 2, 4)}, "must rise .* to the top layer, 3"),
    (SegmenterConfig, {"feature_layers": (0, 2, 1, 3)}, "feature_layers must rise"),
    (SegmenterConfig, {"max_length": 16}, "max_length must be at least 17"),
    (SegmenterConfig, {"pool_scales": ()}, "pool_scales must be"),
    (AugmentationConfig, {"crop_scale": (0.5, 0.2)}, "crop_scale must be a range"),
    (PairedAugmentationConfig, {"resize": (2.0, 1.0)}, "resize must be a range"),
    (ImageDataConfig, {"source": "builtin:digit"}, "builtin:digits, builtin:scenes"),
    (ImageModellingDataConfig, {"image_tokenizer": ""}, "run's directory or builtin:patches"),
]


@pytest.mark.parametrize(("kind", "changes", "words"), WRONG)
def test_what_can_not_be_is_said(kind: type, changes: dict[str, Any], words: str) -> None:
    same = {} if "width" not in kind.__dataclass_fields__ else SIZES  # type: ignore[attr-defined]
    same = SEGMENTER if kind is SegmenterConfig else same
    with pytest.raises(ValueError, match=words):
        kind(**{**same, **changes})


def test_what_only_data_tells_has_to_be_known() -> None:
    with pytest.raises(ValueError, match="codes are not known"):
        MaskedImageModel(ImageModelConfig(**SIZES, max_length=17))
    with pytest.raises(ValueError, match="target_width is not known"):
        TokenizerDistillation(ImageTokenizerConfig(**SIZES))


@pytest.mark.parametrize(
    ("size", "layers", "channels", "rate", "decay", "drop"),
    [
        ("base", [3, 5, 7, 11], 768, 5e-5, 0.75, 0.15),
        ("large", [7, 11, 15, 23], 1024, 4e-5, 0.9, 0.2),
    ],
)
def test_the_paper_s_recipes(
    size: str, layers: list[int], channels: int, rate: float, decay: float, drop: float
) -> None:
    """As BEiT v2's released configuration has it, which the paper's table goes by."""
    recipe = load_recipe(f"segmentation/ade20k-{size}", {"model.pretrained": "runs/x"})
    model, data, training = recipe.model, recipe.data, recipe.training
    assert list(model.feature_layers) == layers and model.head_channels == channels
    assert (model.layer_decay, model.drop_path, training.learning_rate) == (decay, drop, rate)
    assert (model.classes, model.inference) == (150, "slide")
    assert (model.image_size, model.stride, model.pool_scales) == (512, 341, (1, 2, 3, 6))
    assert (model.auxiliary_weight, model.auxiliary_channels, model.auxiliary_level) == (
        0.4,
        256,
        2,
    )
    assert (training.steps, training.batch_size, training.warmup_steps) == (160_000, 16, 1500)
    assert training.betas == (0.9, 0.999) and training.weight_decay == 0.05
    assert training.schedule == "linear"
    assert data.reduce_zero_label and data.fit == data.augmentation.fit == (2048, 512)
    assert data.augmentation.resize == (0.5, 2.0) and data.augmentation.largest_share == 0.75
    assert data.normalisation == "imagenet"


@pytest.mark.parametrize(
    ("name", "rate", "decay", "drop", "epochs", "warmup"),
    [
        ("imagenet-base", 5e-4, 0.65, 0.1, 100, 0.2),
        ("imagenet-large", 3e-4, 0.8, 0.2, 50, 0.1),
    ],
)
def test_the_papers_fine_tuning(name, rate, decay, drop, epochs, warmup) -> None:
    recipe = load_recipe(f"image-classification/{name}")
    training, model, data = recipe.training, recipe.model, recipe.data
    assert (training.learning_rate, training.epochs, training.warmup_ratio) == (
        rate,
        epochs,
        warmup,
    )
    assert (training.batch_size, training.final_learning_rate) == (1024, 1e-6)
    assert (training.betas, training.eps, training.weight_decay) == ((0.9, 0.999), 1e-8, 0.05)
    assert training.clip_norm is None and training.ema_decay is None
    assert (model.layer_decay, model.drop_path, model.label_smoothing) == (decay, drop, 0.1)
    assert (model.pooling, model.objective, model.dropout) == ("mean_then_norm", "cross_entropy", 0)
    assert (data.mixup, data.cutmix, data.resize, model.image_size) == (0.8, 1.0, 256, 224)
    changes = data.augmentation
    assert (changes.erasing, changes.rand_augment, changes.rand_augment_std) == (0.25, 9, 0.5)
    assert changes.repeats == 1


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
