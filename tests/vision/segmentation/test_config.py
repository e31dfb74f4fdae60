"""What no segmentation model can be, in words."""

from typing import Any

import pytest

from magneto.config import ConfigError
from magneto.recipe import load_recipe
from magneto.vision.config import SegmentationDataConfig
from tests.vision.segmentation.small import small_config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": 18}, "patch_size (4) must divide image_size (18)"),
        ({"image_size": 4, "stride": 4}, "image_size must be 8 or more"),
        ({"stride": 17}, "stride must be in [1, 16], not 17"),
        ({"feature_layers": (0, 1, 2, 2)}, "feature_layers must rise"),
        ({"feature_layers": (0, 1, 2, 4)}, "to the top layer, 3"),
        ({"max_length": 16}, "max_length must be at least 17"),
        ({"classes": 256}, "classes must be"),
        ({"auxiliary_level": 4}, "auxiliary_level must be"),
        ({"layer_decay": 0.0}, "layer_decay must be"),
        ({"head_dropout": 1.0}, "head_dropout must be"),
        ({"auxiliary_weight": -1.0}, "auxiliary_weight must be"),
        ({"pool_scales": ()}, "pool_scales must be"),
    ],
)
def test_impossible_models(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        small_config(**changes)
    assert words in str(error.value)


def test_all_errors_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        small_config(classes=1, stride=0, layer_decay=2.0)
    assert len(error.value.lines) == 3


def test_impossible_data() -> None:
    with pytest.raises(ValueError, match="ignored numbers are 0 to 255"):
        SegmentationDataConfig(ignored=(256,))
    with pytest.raises(ValueError, match="fit must be"):
        SegmentationDataConfig(fit=(0, 5))
    with pytest.raises(ValueError, match="validation_fraction"):
        SegmentationDataConfig(validation_fraction=1.0)


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
