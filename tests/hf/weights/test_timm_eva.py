"""timm's EVA and EVA-02 against timm's own class."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from magneto.hf.weights.timm import EVA, FORMATS
from tests.hf.weights.test_timm_vit import small
from tests.hf.weights.timm_models import (
    HEADS,
    check_same_answers,
    check_there_and_back,
    timm_model,
)

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "EVA-02 base": ("eva02_base_patch14_224", {}, "eva02"),
    "EVA-02 tiny": ("eva02_tiny_patch14_224", {}, "pre"),
    "EVA-02, Sub-LN": ("eva02_base_patch16_clip_224", {"num_classes": 5}, "sub"),
    "EVA-02, class token": ("eva02_base_patch14_224", {"global_pool": "token"}, "eva02"),
    "EVA": ("eva_giant_patch14_224", {}, "pre"),
}


@pytest.mark.parametrize("name", MODELS)
def test_timms_own_class_computes_the_same(name: str, tmp_path: Path) -> None:
    architecture, changes, placement = MODELS[name]
    theirs = timm_model(architecture, **changes)
    assert FORMATS["timm_eva"].fits(theirs.state_dict())
    ours = EVA.load(theirs.state_dict(), HEADS | {"architecture": architecture})
    assert ours.config.row.name == placement
    assert ours.config.reference_grid == (16 if "02" in architecture else None)
    check_same_answers(theirs, ours)
    check_there_and_back(theirs, ours, "timm_eva", tmp_path)


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_ours_there_and_back(eps: float, tmp_path: Path) -> None:
    """Sub-LN with our norms' epsilon, no biases of queries, keys and values, unstretched places."""
    from magneto.hf.weights.weight_files import save_weight_file
    from tests.nn.grids import timm_module

    ours = small(
        placement="sub", norm_eps=eps, activation="swiglu", unbiased=("q", "k", "v"),
        grid_positions="rotary", pooling="mean", positions="none", rotary_base=100.0,
    )  # fmt: skip
    torch.nn.init.normal_(ours.get_parameter("head.weight"))
    state, held = EVA.save(ours)
    again = EVA.load(state, held["model_args"] | {"architecture": held["architecture"]})
    assert again.config == ours.config
    assert all(torch.equal(again.state_dict()[name], t) for name, t in ours.state_dict().items())
    save_weight_file(ours, "timm_eva", tmp_path)
    theirs = timm_module("timm").create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(2, 3, 8, 8)
    assert (theirs(images) - ours(images)).abs().max() <= 1e-5


def test_what_does_not_fit_is_named() -> None:
    given: dict[str, Any] = {"placement": "pre", "norm_eps": 1e-6, "unbiased": ("k",)}
    state, _ = EVA.save(small(**given))
    for args, words in [
        ({"architecture": "vit_base_patch16_rope_224"}, "vit_base_patch16_rope_224 has no"),
        ({"rope_type": "mixed"}, "rope_type='mixed' has no counterpart"),
        ({"use_rot_pos_emb": True, "ref_feat_shape": [7, 9]}, r"\[7, 9\] is no square"),
    ]:
        with pytest.raises(ValueError, match=words):
            EVA.load(state, HEADS | args)
    for changes, words in [
        ({"placement": "deepnorm"}, "placement is 'deepnorm' here, 'pre' or 'eva02' or 'sub'"),
        ({"activation": "geglu"}, "activation is 'geglu' here"),
        (
            {"grid_positions": "relative_bias"},
            "is 'relative_bias' here, 'none' or 'rotary' there",
        ),
        ({"unbiased": ()}, r"unbiased is \(\) here, \('k',\) there"),
    ]:
        with pytest.raises(ValueError, match=words):
            EVA.save(small(**{**given, **changes}))
