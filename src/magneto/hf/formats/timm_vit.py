"""timm's VisionTransformer as our image classifier, and back: ViT, DeiT and BEiT-3.

Since timm 1.0.16 BEiT-3 is one of them, with a norm inside attention and one inside the
feed-forward network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from magneto.hf.formats import timm
from magneto.hf.formats.layout import (
    Pair,
    State,
    check_placement,
    check_same,
    module,
    write_state,
)
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig

NAME = "timm_vit"
# By the epsilon of their norms.
ARCHITECTURES = {1e-6: "vit_base_patch16_224", 1e-5: "beit3_base_patch16_224"}
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")


def is_timm_vit(names: Mapping[str, Tensor]) -> bool:
    """Whether tensors of these names are a VisionTransformer's."""
    return "blocks.0.attn.qkv.weight" in names and "blocks.0.attn.q_bias" not in names


def load_timm_vit(state: Mapping[str, Tensor], args: Mapping[str, Any]) -> ImageClassifier:
    """Return a VisionTransformer as ours, in evaluation mode.

    Args:
        state: Of timm's model with a classifier.
        args: By timm's names: `num_heads`, `global_pool`, `act_layer` and `norm_eps`, and the
            `architecture` of its config.json; what is not there is timm's default.

    Raises:
        ValueError: If there is no counterpart for what it computes.
    """
    timm.check_arguments(args, norm_layer=None, pool_include_prefix=False)
    named = timm.in_float32(state)
    config = _config(named, args)
    return timm.read(config, pairs(config), named)


def to_timm_vit(model: nn.Module) -> tuple[State, dict[str, Any]]:
    """Return an image classifier of ours by timm's names, and what its config.json says.

    Raises:
        ValueError: If there is no counterpart; the first difference is named.
    """
    config = timm.classifier_config(model, NAME)
    check_placement(config, ["pre", "sub"], NAME)
    timm.check_fields(config, NAME, grid_positions=("none",), activation=ACTIVATIONS)
    args = _arguments(config)
    state = write_state(pairs(config), model.state_dict())
    held = timm.timm_config(config, NAME, ARCHITECTURES, args)
    check_same(config, _config(state, {**args, "norm_eps": config.norm_eps}), NAME)
    return state, held


def _arguments(config: ImageClassifierConfig) -> dict[str, Any]:
    own = {
        "qkv_bias": config.biased("q"), "act_layer": config.activation,
        "scale_attn_norm": config.row.name == "sub", "scale_mlp_norm": config.row.name == "sub",
        "class_token": config.class_token == "learned",
        "fc_norm": config.pooling == "mean_then_norm",
        "pos_embed": "learn" if config.positions == "learned" else "none",
    }  # fmt: skip
    return timm.arguments(config) | own


def _config(state: State, args: Mapping[str, Any]) -> ImageClassifierConfig:
    known = timm.shape(state, args)
    row = timm.placement(state)
    beit3 = str(args.get("architecture", "beit3" if row == "sub" else "")).startswith("beit3")
    function = args.get("act_layer") or "gelu"
    if function not in ACTIVATIONS:
        raise ValueError(f"no activation {function!r} here: there are {', '.join(ACTIVATIONS)}")
    return ImageClassifierConfig(
        **known, placement=row, activation=function,
        norm_eps=args.get("norm_eps", 1e-5 if beit3 else 1e-6),
        unbiased=() if "blocks.0.attn.qkv.bias" in state else ("q", "k", "v"),
    )  # fmt: skip


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which."""
    made = timm.pairs(config)
    for layer in range(config.layers):
        mine, their = f"encoder.layers.{layer}", f"blocks.{layer}"
        made += module(f"{mine}.self_attention.attention.qkv_proj", f"{their}.attn.qkv")
        made += timm.layer_pairs(mine, their)
        made += timm.scale_pairs(mine, f"{their}.ls1.gamma", f"{their}.ls2.gamma")
    return made
