"""timm's VisionTransformer: ViT, DeiT and BEiT-3 against timm's own classes."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from magneto.hf.weights.timm import VIT
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig
from tests.hf.weights.timm_models import (
    HEADS,
    check_same_answers,
    check_there_and_back,
    timm_model,
)

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ViT": ("vit_base_patch16_224", {}, {}),
    "ViT without a class token": (
        "vit_base_patch16_224",
        {"class_token": False, "global_pool": "avg", "fc_norm": False},
        {},
    ),
    "ViT, mean of the patches": (
        "vit_base_patch16_224", {"global_pool": "avg", "fc_norm": False}, {"global_pool": "avg"},
    ),
    "ViT, ReLU, no biases of queries": (
        "vit_base_patch16_224", {"act_layer": "relu", "qkv_bias": False}, {"act_layer": "relu"},
    ),
    "DeiT": ("deit_tiny_patch16_224", {}, {}),
    "BEiT-3": ("beit3_base_patch16_224", {}, {}),
    "BEiT-3, class token": ("beit3_base_patch16_224", {"global_pool": "token"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_timms_own_class_computes_the_same(name: str, tmp_path: Path) -> None:
    architecture, changes, args = MODELS[name]
    theirs = timm_model(architecture, **changes)
    ours = VIT.load(theirs.state_dict(), HEADS | args)
    check_same_answers(theirs, ours)
    check_there_and_back(theirs, ours, "timm_vit", tmp_path)


def test_the_names_that_timm_ships_of_beit3() -> None:
    names = timm_model("beit3_base_patch16_224").state_dict()
    assert {"pos_embed", "blocks.0.attn.qkv.weight", "blocks.0.attn.norm.weight"} < names.keys()
    ours = VIT.load(names, HEADS).config
    assert (ours.placement, ours.norm_eps, ours.pooling) == ("sub", 1e-5, "mean_then_norm")


def small(**changes: Any) -> ImageClassifier:
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "width": 32, "layers": 1, "heads": 4, "ffn_width": 48, "image_size": 8, "patch_size": 4,
        "classes": 5, "class_token": "learned", "positions": "learned", "max_length": 5,
    }  # fmt: skip
    return ImageClassifier(ImageClassifierConfig(**{**values, **changes})).eval()


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
@pytest.mark.parametrize("placement", ["pre", "sub"])
def test_ours_there_and_back_without_timm(placement: str, eps: float) -> None:
    ours = small(placement=placement, norm_eps=eps, layer_scale=0.1, layer_decay=0.65)
    torch.nn.init.normal_(ours.get_parameter("encoder.position_embedding.table.weight"))
    state, held = VIT.save(ours)
    again = VIT.load(state, held["model_args"] | {"architecture": held["architecture"]})
    expected = ours.state_dict()
    assert expected.keys() == again.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], t) for name, t in expected.items())
    assert again.config.norm_eps == eps and again.config.layer_scale == 0.1


def test_what_does_not_fit_is_named() -> None:
    state, _ = VIT.save(small(placement="pre"))
    for changed, args, words in [
        ({"reg_token": torch.ones(1, 4, 32)}, HEADS, "no place here for the tensor 'reg_token'"),
        ({"dist_token": torch.ones(1, 1, 32)}, HEADS, "a distillation token .* no counterpart"),
        ({"pos_embed": torch.ones(1, 8, 32)}, HEADS, "7 patches are no square image"),
        ({"fc_norm.weight": torch.ones(32), "norm.weight": torch.ones(32)}, HEADS, "one after"),
        ({}, {}, r"how many heads a model of width 32 has: --config FILE with \{\"num_heads\": 4"),
        ({}, HEADS | {"architecture": "vit_base_patch16_clip_quickgelu_224"}, "quickgelu"),
        ({}, HEADS | {"act_layer": "tanh"}, "no activation 'tanh'"),
        ({"blocks.0.attn.norm.weight": torch.ones(32)}, HEADS, "a norm inside attention alone"),
    ]:
        with pytest.raises(ValueError, match=words):
            VIT.load(state | changed, args)
    headless = {name: t for name, t in state.items() if not name.startswith("head.")}
    with pytest.raises(ValueError, match="have no classifier"):
        VIT.load(headless, HEADS)
    for changes, words in [
        ({"placement": "post"}, "placement is 'post' here, 'pre' or 'sub' there"),
        ({"norm_eps": 1e-4}, r"norm_eps is 0\.0001 here, 1e-06 or 1e-05 there"),
        ({"unbiased": ("k",)}, r"unbiased is \('k',\) here, \(\) there"),
        ({"grid_positions": "rotary"}, "grid_positions is 'rotary' here"),
        ({"dropout": 0.1}, r"dropout is 0\.1 here"),
    ]:
        with pytest.raises(ValueError, match=words):
            VIT.save(small(**{"placement": "pre", **changes}))
    with pytest.raises(ValueError, match="no counterpart of a Linear"):
        VIT.save(torch.nn.Linear(1, 1))
