"""timm's BEiT and BEiT v2 as our image classifier, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from magneto.hf.formats import timm
from magneto.hf.formats.layout import Pair, State, check_placement, check_same, write_state
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig

NAME = "timm_beit"
ARCHITECTURES = {1e-6: "beit_base_patch16_224"}
TABLE = "relative_position_bias_table"
SHARED = f"rel_pos_bias.{TABLE}"


def is_timm_beit(names: Mapping[str, Tensor]) -> bool:
    """Whether tensors of these names are a Beit's: its relative positions tell."""
    return SHARED in names or f"blocks.0.attn.{TABLE}" in names


def load_timm_beit(state: Mapping[str, Tensor], args: Mapping[str, Any]) -> ImageClassifier:
    """Return a Beit as ours, in evaluation mode.

    Args:
        state: Of timm's model with a classifier.
        args: By timm's names: `num_heads`, `global_pool`, `img_size`; what is not there is timm's
            default.

    Raises:
        ValueError: If there is no counterpart for what it computes.
    """
    named = timm.in_float32(state)
    config = _config(named, args)
    return timm.read(config, pairs(config), named)


def to_timm_beit(model: nn.Module) -> tuple[State, dict[str, Any]]:
    """Return an image classifier of ours by timm's names, and what its config.json says.

    Raises:
        ValueError: If there is no counterpart; the first difference is named.
    """
    config = timm.classifier_config(model, NAME)
    check_placement(config, ["pre"], NAME)
    grids = ("none", "relative_bias", "shared_relative_bias")
    timm.check_fields(config, NAME, class_token=("learned",), grid_positions=grids)
    args = timm.arguments(config) | {
        "qkv_bias": config.biased("q"), "use_fc_norm": config.pooling == "mean_then_norm",
        "use_abs_pos_emb": config.positions == "learned",
        "use_rel_pos_bias": config.grid_positions == "relative_bias",
        "use_shared_rel_pos_bias": config.grid_positions == "shared_relative_bias",
    }  # fmt: skip
    state = write_state(pairs(config), model.state_dict())
    held = timm.timm_config(config, NAME, ARCHITECTURES, args)
    check_same(config, _config(state, args), NAME)
    return state, held


def _config(state: State, args: Mapping[str, Any]) -> ImageClassifierConfig:
    own, shared = f"blocks.0.attn.{TABLE}" in state, SHARED in state
    if own and shared:
        raise ValueError("relative positions of each layer and shared ones have no counterpart")
    return ImageClassifierConfig(
        **timm.shape(state, args), placement="pre", norm_eps=1e-6,
        grid_positions="relative_bias" if own else "shared_relative_bias" if shared else "none",
        unbiased=("k",) if "blocks.0.attn.q_bias" in state else ("q", "k", "v"),
    )  # fmt: skip


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which."""
    made = [*timm.pairs(config), Pair("encoder.grid_positions.bias.weight", (SHARED,))]
    for layer in range(config.layers):
        mine, their = f"encoder.layers.{layer}", f"blocks.{layer}"
        attention = f"{mine}.self_attention.attention"
        made += [
            Pair(f"{attention}.qkv_proj.weight", (f"{their}.attn.qkv.weight",)),
            Pair(f"{attention}.qkv_proj.bias", tuple(f"{their}.attn.{p}_bias" for p in "qv")),
            Pair(f"{attention}.positions.bias.weight", (f"{their}.attn.{TABLE}",)),
        ]
        made += timm.layer_pairs(mine, their)
        made += timm.scale_pairs(mine, f"{their}.gamma_1", f"{their}.gamma_2")
    return made
