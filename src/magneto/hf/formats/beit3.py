"""BEiT-3's image classifiers as ours, and back: timm's names of tensors, and the authors'.

The authors' checkpoints hold a text half beside the image half (names with `.B.`); it is left
behind. Both are Sub-LN, with a class token that only attends, and the mean of the patches normed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from torch import Tensor, nn

from magneto.hf.formats.layout import (
    Pair,
    State,
    add_two,
    check_placement,
    check_same,
    fill,
    module,
    read_state,
    skip_two,
    write_state,
)
from magneto.hf.formats.vit import as_row, squeezed
from magneto.vision.classification.config import ImageClassifierConfig
from magneto.vision.classification.model import ImageClassifier

# The authors' names as timm's, in this order.
RENAMED = (
    (r"^beit3\.", ""),
    (r"^vision_embed\.cls_token", "cls_token"),
    (r"^vision_embed\.", "patch_embed."),
    (r"^encoder\.embed_positions\.A\.", "pos_embed."),
    (r"^encoder\.layers\.", "blocks."),
    (r"\.ffn\.A\.ffn_layernorm\.", ".mlp.norm."),
    (r"\.ffn\.A\.", ".mlp."),
    (r"\.self_attn\.(\w+)\.A\.", r".attn.\1."),
    (r"\.self_attn_layer_norm\.A\.", ".norm1."),
    (r"\.final_layer_norm\.A\.", ".norm2."),
    (r"^encoder\.layer_norm\.A\.", "norm."),
)
TEXT_HALF = r"\.B\.|(^|\.)text_embed|mask_token$|^language_head|^mlm_head"
# Of BEiT-3 in every size.
HEAD_WIDTH = 64


def is_beit3(names: Mapping[str, Tensor]) -> bool:
    """Whether tensors of these names are a BEiT-3's, as timm or as its authors call them."""
    return any(
        re.search(r"(^|\.)vision_embed\.|^blocks\.0\.attn\.inner_attn_ln", name) for name in names
    )


def load_beit3(state: Mapping[str, Tensor], heads: int | None = None) -> ImageClassifier:
    """Return BEiT-3's image classifier as ours, in evaluation mode.

    Args:
        state: Of timm's BEiT3, or of the authors' BEiT3ForImageClassification.
        heads: Of attention; by default so many that each is 64 wide, as in every BEiT-3.

    Raises:
        ValueError: If it has no classifier, or what it computes has no counterpart.
    """
    kept = {name: t for name, t in state.items() if not re.search(TEXT_HALF, name)}
    named = {timm_name(name): tensor.detach().clone().float() for name, tensor in kept.items()}
    if "head.weight" not in named:
        raise ValueError("these BEiT-3 weights have no classifier (head.weight): convert those of "
                         "image classification")  # fmt: skip
    config = _config(named, heads)
    made = read_state(pairs(config), named)
    model = ImageClassifier(config)
    fill(model, made)
    return model.eval()


def to_beit3(model: nn.Module) -> State:
    """Return an image classifier of ours by timm's names of a BEiT3.

    Raises:
        ValueError: If BEiT-3 has no counterpart; the first difference is named.
    """
    if not isinstance(model, ImageClassifier):
        raise ValueError(f"beit3 has no counterpart of a {type(model).__name__}")
    config = model.config
    check_placement(config, ["sub"], "beit3")
    for name, wanted in (
        ("class_token", "learned"),
        ("positions", "learned"),
    ):
        found = getattr(config, name)
        if found != wanted:
            raise ValueError(f"beit3 cannot hold this model: {name} is {found!r} here, "
                             f"{wanted!r} there")  # fmt: skip
    state = write_state(pairs(config), model.state_dict())
    check_same(config, _config(state, config.heads), "beit3")
    return state


def timm_name(name: str) -> str:
    """Return a name of the authors' as timm has it; one of timm's as it is."""
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def _config(state: State, heads: int | None) -> ImageClassifierConfig:
    """Return our configuration of tensors under timm's names; eps and dropout are BEiT-3's."""
    width, channels, patch, _ = state["patch_embed.proj.weight"].shape
    length = len(state["pos_embed.weight"]) - 2
    side = math.isqrt(length - 1)
    if side * side != length - 1:
        raise ValueError(f"{length - 1} patches are no square image")
    if "norm.weight" in state and "fc_norm.weight" in state:
        raise ValueError("BEiT-3 with a norm before pooling and one after has no counterpart here")
    numbers = [int(name.split(".")[1]) for name in state if name.startswith("blocks.")]
    return ImageClassifierConfig(
        width=width, layers=1 + max(numbers), heads=heads or max(width // HEAD_WIDTH, 1),
        ffn_width=len(state["blocks.0.mlp.fc1.weight"]), placement="sub", positions="learned",
        max_length=length, image_size=side * patch, patch_size=patch, channels=channels,
        classes=len(state["head.weight"]), class_token="learned",
        pooling="mean_then_norm" if "fc_norm.weight" in state else "first",
    )  # fmt: skip


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which of timm's BEiT3."""
    table = "encoder.position_embedding.table.weight"
    made = [
        Pair("class_token.vector", ("cls_token",), squeezed, as_row),
        Pair(table, ("pos_embed.weight",), skip_two, add_two),
        *module("embedding.proj", "patch_embed.proj"),
        *module("pooled_norm", "fc_norm"),
        *module("encoder.final_norm", "norm"),
        *module("head", "head"),
    ]
    names = {
        "self_attention.before": "norm1",
        "self_attention.attention.inside": "attn.inner_attn_ln",
        "self_attention.attention.out_proj": "attn.out_proj",
        "feed_forward.before": "norm2",
        "feed_forward.mlp.fc1": "mlp.fc1",
        "feed_forward.mlp.inside": "mlp.norm",
        "feed_forward.mlp.fc2": "mlp.fc2",
    }
    for layer in range(config.layers):
        mine, their = f"encoder.layers.{layer}", f"blocks.{layer}"
        parts = [f"{their}.attn.{part}_proj" for part in "qkv"]
        made += module(f"{mine}.self_attention.attention.qkv_proj", *parts)
        for name, other in names.items():
            made += module(f"{mine}.{name}", f"{their}.{other}")
    return made
