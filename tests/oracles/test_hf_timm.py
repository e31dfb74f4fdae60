"""timm's ViT, DeiT, BEiT-3, BEiT, BEiT v2, EVA and EVA-02 against timm's own classes."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from magneto.hf.conversion import load_weight_file, save_weight_file
from magneto.hf.timm import FORMATS, TABLE, head_count
from magneto.vision.config import ImageClassifierConfig
from magneto.vision.models import ImageClassifier
from tests.oracles.hf_models import same_gradients, shaken
from tests.unit.nn.grids import timm_module

BEIT, EVA, VIT = FORMATS
SIZES = {"img_size": 24, "patch_size": 8, "num_classes": 5, "embed_dim": 32, "depth": 2,
         "num_heads": 4, "mlp_ratio": 1.5}  # fmt: skip
HEADS = {"num_heads": 4}
IMAGES = torch.randn(3, 3, 24, 24, generator=torch.Generator().manual_seed(1))
VIT_16, BEIT3_16, BEIT_16 = (
    "vit_base_patch16_224", "beit3_base_patch16_224", "beit_base_patch16_224"
)  # fmt: skip
MEAN = {"global_pool": "avg", "fc_norm": False}
SHARED = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}
# Format, architecture, what is changed of it, arguments for ours, and the placement.
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], str]] = {
    "ViT": ("timm_vit", VIT_16, {}, {}, "pre"),
    "ViT without a class token": ("timm_vit", VIT_16, {"class_token": False, **MEAN}, {}, "pre"),
    "ViT, mean of the patches": ("timm_vit", VIT_16, MEAN, {"global_pool": "avg"}, "pre"),
    "ViT, ReLU, no biases of queries": (
        "timm_vit", VIT_16, {"act_layer": "relu", "qkv_bias": False}, {"act_layer": "relu"}, "pre",
    ),
    "DeiT": ("timm_vit", "deit_tiny_patch16_224", {}, {}, "pre"),
    "BEiT-3": ("timm_vit", BEIT3_16, {}, {}, "sub"),
    "BEiT-3, class token": ("timm_vit", BEIT3_16, {"global_pool": "token"}, {}, "sub"),
    "BEiT": ("timm_beit", BEIT_16, {}, {"init_values": 0.1}, "pre"),
    "BEiT v2": ("timm_beit", "beitv2_base_patch16_224", {}, {"init_values": 0.1}, "pre"),
    "BEiT, shared positions": ("timm_beit", BEIT_16, SHARED, {"init_values": 0.1}, "pre"),
    "BEiT, class token": (
        "timm_beit", BEIT_16, {"global_pool": "token", "use_abs_pos_emb": True},
        {"init_values": 0.1}, "pre",
    ),
    "EVA-02 base": ("timm_eva", "eva02_base_patch14_224", {}, {}, "eva02"),
    "EVA-02 tiny": ("timm_eva", "eva02_tiny_patch14_224", {}, {}, "pre"),
    "EVA-02, Sub-LN": ("timm_eva", "eva02_base_patch16_clip_224", {"num_classes": 5}, {}, "sub"),
    "EVA-02, class token": (
        "timm_eva", "eva02_base_patch14_224", {"global_pool": "token"}, {}, "eva02",
    ),
    "EVA": ("timm_eva", "eva_giant_patch14_224", {}, {}, "pre"),
}  # fmt: skip


def timm_model(architecture: str, **changes: Any) -> Any:
    """One of timm's architectures in small, every parameter with a value of its own."""
    torch.manual_seed(0)
    return shaken(timm_module("timm").create_model(architecture, **{**SIZES, **changes}))


@pytest.mark.parametrize("name", MODELS)
def test_timms_own_class_computes_the_same(name: str, tmp_path: Path) -> None:
    """Features, logits and gradients; and timm makes the same model of what is written."""
    kind, architecture, changes, args, placement = MODELS[name]
    theirs = timm_model(architecture, **changes)
    state = theirs.state_dict()
    form = next(form for form in FORMATS if form.fits(state, {}))
    assert form.name == kind
    given = HEADS | args | ({"architecture": architecture} if kind == "timm_eva" else {})
    ours: Any = form.load(state, given)
    assert ours.config.row.name == placement
    expected, found = theirs(IMAGES), ours(IMAGES)
    difference = (expected - found).abs().max().item()
    print(f"{name}: largest difference {difference:.2e} of {expected.abs().max().item():.2f}")
    assert difference <= 1e-5
    features = ours.encoder(ours.class_token(ours.embedding(IMAGES)))
    assert (theirs.forward_features(IMAGES) - features).abs().max() <= 1e-5
    weights = theirs.patch_embed.proj.weight, ours.embedding.proj.weight
    same_gradients((expected, found), weights, 1e-5)

    save_weight_file(ours, kind, tmp_path)
    again: Any = load_weight_file(tmp_path)
    assert again.config == ours.config
    back = timm_module("timm").create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert state.keys() == back.state_dict().keys()
    assert all(torch.equal(back.state_dict()[key], tensor) for key, tensor in state.items())
    assert torch.equal(back(IMAGES), theirs(IMAGES))


def small(**changes: Any) -> ImageClassifier:
    values: dict[str, Any] = {
        "width": 32, "layers": 1, "heads": 4, "ffn_width": 48, "image_size": 8, "patch_size": 4,
        "classes": 5, "class_token": "learned", "positions": "learned", "max_length": 5,
    }  # fmt: skip
    return shaken(ImageClassifier(ImageClassifierConfig(**{**values, **changes})))  # type: ignore[return-value]


ROTARY = {"activation": "swiglu", "grid_positions": "rotary", "unbiased": ("q", "k", "v"),
          "pooling": "mean", "positions": "none", "rotary_base": 100.0}  # fmt: skip
# 28 * (61 / 28) is less than 61, and timm rounds down.
INEXACT = {"width": 28, "ffn_width": 61}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("timm_vit", {"placement": "pre", "norm_eps": 1e-5, "layer_scale": 0.1, **INEXACT}),
        ("timm_vit", {"placement": "sub", "norm_eps": 1e-6, "layer_decay": 0.65}),
        ("timm_eva", {"placement": "sub", "norm_eps": 1e-5, **ROTARY}),
        ("timm_eva", {"placement": "sub", "norm_eps": 1e-6, **ROTARY}),
    ],
)
def test_ours_there_and_back(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    ours = small(**changes)
    save_weight_file(ours, kind, tmp_path)
    again = load_weight_file(tmp_path).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.state_dict().items())
    theirs = timm_module("timm").create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(2, 3, 8, 8)
    assert (theirs(images) - ours(images)).abs().max() <= 1e-5


def test_what_does_not_fit_is_named() -> None:
    vit, _ = VIT.save(small(placement="pre", norm_eps=1e-6))
    relative = {"grid_positions": "relative_bias", "unbiased": ("k",)}
    beit, _ = BEIT.save(small(placement="pre", norm_eps=1e-6, **relative))
    del beit["pos_embed"]
    table = f"blocks.0.attn.{TABLE}"
    added: tuple[tuple[Any, str, tuple[int, ...], str], ...] = (
        (VIT, "reg_token", (1, 4, 32), "of the tensor 'reg_token'"),
        (VIT, "dist_token", (1, 1, 32), "a distillation token .* not supp"),
        (VIT, "pos_embed", (1, 8, 32), "7 patches are not a square image"),
        (VIT, "fc_norm.weight", (32,), "no tensor 'encoder.final_norm"),
        (VIT, "blocks.0.attn.norm.weight", (32,), r"attention\.inside\.bias' is missing"),
        (VIT, "norm.weight", (31,), r"final_norm.weight is \(31,\), but"),
        (BEIT, table, (13, 4), r"is \(13, 4\), but must be \(12, 4\)"),
        (BEIT, f"rel_pos_bias.{TABLE}", (12, 4), "no tensor 'encoder.grid_positions"),
    )
    for form, name, shape, words in added:
        with pytest.raises(ValueError, match=words):
            form.load((vit if form is VIT else beit) | {name: torch.ones(shape)}, HEADS)
    for lacking, words in (("norm.bias", "norm.bias' is missing"), ("head.", "no head.weight, ")):
        with pytest.raises(ValueError, match=words):
            VIT.load({n: t for n, t in vit.items() if not n.startswith(lacking)}, HEADS)
    with pytest.raises(
        ValueError, match=r"no patch_embed.proj.weight, which ImageClassifier needs"
    ):
        VIT.load({n: t for n, t in vit.items() if n != "patch_embed.proj.weight"}, HEADS)
    with pytest.raises(ValueError, match="Beit needs a class token"):
        BEIT.load({name: t for name, t in beit.items() if name != "cls_token"}, HEADS)
    for form, args, words in (
        (VIT, {"architecture": "vit_base_patch16_clip_quickgelu_224"}, "quickgelu"),
        (VIT, {"architecture": "vit_base_patch16_rpn_224"}, "rpn_224 is not supported"),
        (VIT, {"global_pool": "max"}, "global_pool 'max' is not supported"),
        (VIT, {"num_heads": [4]}, "heads must be a whole number"),
        (VIT, {"act_layer": "tanh"}, "activation 'tanh' is not supported"),
        (EVA, {"architecture": "eva02_enormous_patch14_clip_224"}, "clip_224 is not supported"),
        (EVA, {"use_post_norm": True}, "use_post_norm=True is not supported"),
        (EVA, {"architecture": "vit_base_patch16_rope_224"}, "patch16_rope_224 is not supp"),
        (EVA, {"rope_type": "mixed"}, "rope_type='mixed' is not supported"),
        (EVA, {"use_rot_pos_emb": True, "ref_feat_shape": [7, 9]}, r"\[7, 9\] is not square"),
    ):
        with pytest.raises(ValueError, match=words):
            form.load(vit, HEADS | args)
    assert [head_count(width, {}) for width in (768, 1280)] == [12, 16]
    with pytest.raises(
        ValueError, match=r"heads does not follow from width 32. Give --config FILE"
    ):
        VIT.load(vit, {})
    with pytest.raises(ValueError, match=r"norm_eps is 0\.0001, but must be 1e-06 or 1e-05"):
        VIT.save(small(placement="pre", norm_eps=1e-4))
