"""BEiT-3's image classifiers (arXiv 2208.10442) as ours, and back, by their authors' names.

The authors' checkpoints hold a text half beside the image half (names with `.B.`); it is left
behind, and is not written. They are Sub-LN, with a class token that only attends, and the mean of
the patches normed. timm's BEiT-3 has other names: see `timm_vit`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from magneto.hf.formats import timm
from magneto.hf.formats.layout import (
    Pair,
    State,
    activation,
    add_two,
    as_row,
    check_placement,
    check_same,
    module,
    skip_two,
    squeezed,
    write_state,
)
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig

PREFIX = "beit3."
TEXT_HALF = r"\.B\.|(^|\.)text_embed|mask_token$|^language_head|^mlm_head"
POSITIONS = f"{PREFIX}encoder.embed_positions.A.weight"
PATCHES = f"{PREFIX}vision_embed.proj"


def is_beit3(names: Mapping[str, Tensor]) -> bool:
    """Whether tensors of these names are a BEiT-3's, as its authors call them."""
    return any(re.match(r"(beit3\.)?vision_embed\.", name) for name in names)


def load_beit3(
    state: Mapping[str, Tensor], args: Mapping[str, Any] | None = None
) -> ImageClassifier:
    """Return BEiT-3's image classifier as ours, in evaluation mode.

    Args:
        state: Of the authors' BEiT3ForImageClassification.
        args: By torchscale's names: `encoder_attention_heads`, by default those of BEiT-3 at that
            width; `layernorm_eps`, 1e-5; `activation_fn`, "gelu".

    Raises:
        ValueError: If it has no classifier, or what it computes has no counterpart.
    """
    kept = {name: t for name, t in state.items() if not re.search(TEXT_HALF, name)}
    named = {_whole(name): tensor for name, tensor in timm.in_float32(kept).items()}
    if "head.weight" not in named:
        raise ValueError("these BEiT-3 weights have no classifier (head.weight): convert those of "
                         "image classification")  # fmt: skip
    config = _config(named, args or {})
    return timm.read(config, pairs(config), named)


def to_beit3(model: nn.Module) -> tuple[State, dict[str, Any]]:
    """Return an image classifier of ours by the authors' names, and torchscale's arguments.

    Raises:
        ValueError: If BEiT-3 has no counterpart; the first difference is named.
    """
    config = timm.classifier_config(model, "beit3")
    check_placement(config, ["sub"], "beit3")
    timm.check_fields(
        config, "beit3", class_token=("learned",),
        positions=("learned",), grid_positions=("none",), pooling=("mean_then_norm",),
    )  # fmt: skip
    args = {
        "encoder_attention_heads": config.heads,
        "layernorm_eps": config.norm_eps,
        "activation_fn": config.activation,
    }
    state = write_state(pairs(config), model.state_dict())
    check_same(config, _config(state, args), "beit3")
    return state, args


def _whole(name: str) -> str:
    """Return a name with the prefix that the authors' classifiers have."""
    bare = name.startswith(("vision_embed.", "encoder."))
    return f"{PREFIX}{name}" if bare else name


def _config(state: State, args: Mapping[str, Any]) -> ImageClassifierConfig:
    width, channels, patch, _ = state[f"{PATCHES}.weight"].shape
    length = len(state[POSITIONS]) - 2
    side = math.isqrt(length - 1)
    if side * side != length - 1:
        raise ValueError(f"{length - 1} patches are no square image")
    blocks = f"{PREFIX}encoder.layers."
    numbers = [int(name.removeprefix(blocks).split(".")[0]) for name in state if blocks in name]
    heads = args.get("encoder_attention_heads")
    return ImageClassifierConfig(
        width=width, layers=1 + max(numbers),
        heads=timm.head_count(width, {"num_heads": heads} if heads else {}),
        ffn_width=len(state[f"{blocks}0.ffn.A.fc1.weight"]), placement="sub", positions="learned",
        activation=activation(args.get("activation_fn", "gelu")),
        norm_eps=args.get("layernorm_eps", 1e-5),
        max_length=length, image_size=side * patch, patch_size=patch, channels=channels,
        classes=len(state["head.weight"]), class_token="learned", pooling="mean_then_norm",
    )  # fmt: skip


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which of the authors' BEiT3ForImageClassification."""
    made = [
        Pair("class_token.vector", (f"{PREFIX}vision_embed.cls_token",), squeezed, as_row),
        Pair(timm.POSITIONS, (POSITIONS,), skip_two, add_two),
        *module("embedding.proj", PATCHES),
        *module("pooled_norm", "fc_norm"),
        *module("head", "head"),
    ]
    names = {
        "self_attention.before": "self_attn_layer_norm.A",
        "self_attention.attention.inside": "self_attn.inner_attn_ln.A",
        "self_attention.attention.out_proj": "self_attn.out_proj.A",
        "feed_forward.before": "final_layer_norm.A",
        "feed_forward.mlp.fc1": "ffn.A.fc1",
        "feed_forward.mlp.inside": "ffn.A.ffn_layernorm",
        "feed_forward.mlp.fc2": "ffn.A.fc2",
    }
    for layer in range(config.layers):
        mine, their = f"encoder.layers.{layer}", f"{PREFIX}encoder.layers.{layer}"
        parts = [f"{their}.self_attn.{part}_proj.A" for part in "qkv"]
        made += module(f"{mine}.self_attention.attention.qkv_proj", *parts)
        for name, other in names.items():
            made += module(f"{mine}.{name}", f"{their}.{other}")
    return made
