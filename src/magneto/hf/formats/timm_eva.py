"""timm's EVA and EVA-02 (arXiv 2303.11331) as our image classifier, and back.

EVA-02 is gated, with a norm after the gate and in some models one inside attention, and turns
queries and keys by row and column. EVA turns neighbours (2i, 2i + 1) of a head, ours turns (i, i +
half): rows of the projections are moved, and the same is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from magneto.hf.formats import timm
from magneto.hf.formats.layout import Pair, State, check_placement, check_same, write_state
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig

NAME = "timm_eva"
ARCHITECTURES = {1e-6: "eva02_base_patch14_224", 1e-5: "vit_pe_core_base_patch16_224"}
# Rows and columns that the places of every released EVA-02 are stretched to.
REFERENCE = 16


def is_timm_eva(names: Mapping[str, Tensor]) -> bool:
    """Whether tensors of these names are an Eva's."""
    return "blocks.0.attn.q_bias" in names or "blocks.0.attn.q_proj.weight" in names


def load_timm_eva(state: Mapping[str, Tensor], args: Mapping[str, Any]) -> ImageClassifier:
    """Return an Eva as ours, in evaluation mode.

    Args:
        state: Of timm's model with a classifier.
        args: By timm's names: `num_heads`, `global_pool`, `img_size`, `use_rot_pos_emb`,
            `ref_feat_shape`, `rope_temperature`, `norm_eps`. What is not there is as in EVA-02
            where the feed-forward network is gated, and as in EVA where not.

    Raises:
        ValueError: If there is no counterpart for what it computes.
    """
    timm.check_arguments(
        args, rope_type="cat", rope_grid_offset=0.0, rope_grid_indexing="ij",
        rope_rotate_half=False, attn_type="eva", no_embed_class=False,
    )  # fmt: skip
    name = str(args.get("architecture", "eva"))
    if not name.startswith("eva") and "use_rot_pos_emb" not in args:
        raise ValueError(f"timm's {name} has no counterpart here: only EVA and EVA-02")
    named = _apart(timm.in_float32(state))
    config = _config(named, args)
    return timm.read(config, pairs(config), _turned(named, config, _to_halves))


def to_timm_eva(model: nn.Module) -> tuple[State, dict[str, Any]]:
    """Return an image classifier of ours by timm's names, and what its config.json says.

    Raises:
        ValueError: If there is no counterpart; the first difference is named.
    """
    config = timm.classifier_config(model, NAME)
    check_placement(config, ["pre", "eva02", "sub"], NAME)
    grids = ("none", "rotary")
    timm.check_fields(config, NAME, grid_positions=grids)
    args = _arguments(config)
    state = write_state(pairs(config), model.state_dict())
    held = timm.timm_config(config, NAME, ARCHITECTURES, args)
    check_same(config, _config(state, {**args, "norm_eps": config.norm_eps}), NAME)
    state = _turned(state, config, _to_neighbours)
    if args["qkv_fused"]:
        state = _together(state, config.layers)
    return state, held


def _arguments(config: ImageClassifierConfig) -> dict[str, Any]:
    """Return all arguments, since those of the architecture's name are of another model."""
    after = config.pooling == "mean_then_norm"
    return timm.arguments(config) | {
        "qkv_bias": config.biased("q"), "qkv_fused": config.row.name == "pre",
        "swiglu_mlp": config.activation == "swiglu", "scale_mlp": config.row.name != "pre",
        "scale_attn_inner": config.row.name == "sub", "use_fc_norm": after,
        "use_post_transformer_norm": not after, "use_pre_transformer_norm": False,
        "class_token": config.class_token == "learned",
        "use_abs_pos_emb": config.positions == "learned",
        "use_rot_pos_emb": config.grid_positions == "rotary", "attn_type": "eva",
        "ref_feat_shape": config.reference_grid, "rope_temperature": config.rotary_base,
        "rope_grid_offset": 0.0, "rope_grid_indexing": "ij",
    }  # fmt: skip


def _config(state: State, args: Mapping[str, Any]) -> ImageClassifierConfig:
    known = timm.shape(state, args)
    gated = _is_gated(state)
    rotary = bool(args.get("use_rot_pos_emb", gated))
    grid = args.get("ref_feat_shape", REFERENCE) if rotary else None
    rows = {grid} if grid is None or isinstance(grid, int) else set(grid)
    if len(rows) > 1:
        raise ValueError(f"ref_feat_shape {grid} is no square")
    eps = 1e-5 if args.get("architecture") == ARCHITECTURES[1e-5] else 1e-6
    return ImageClassifierConfig(
        **known, placement=timm.placement(state), activation="swiglu" if gated else "gelu",
        norm_eps=args.get("norm_eps", eps), grid_positions="rotary" if rotary else "none",
        reference_grid=rows.pop(), rotary_base=args.get("rope_temperature", 10000.0),
        unbiased=("k",) if "blocks.0.attn.q_proj.bias" in state else ("q", "k", "v"),
    )  # fmt: skip


def _is_gated(state: State) -> bool:
    if "blocks.0.mlp.fc1_g.weight" in state:
        return True
    inner = state["blocks.0.mlp.fc2.weight"].shape[1]
    return len(state["blocks.0.mlp.fc1.weight"]) == 2 * inner


def _apart(state: State) -> State:
    """Return fused queries, keys and values under names of their own."""
    made: State = {}
    for name, tensor in state.items():
        if name.endswith(".attn.qkv.weight"):
            names = [name.replace(".qkv.", f".{part}_proj.") for part in "qkv"]
            made |= dict(zip(names, tensor.chunk(3), strict=True))
        elif name.endswith((".attn.q_bias", ".attn.v_bias")):
            made[name.replace("_bias", "_proj.bias")] = tensor
        else:
            made[name] = tensor
    return made


def _together(state: State, layers: int) -> State:
    """Return queries, keys and values fused, as most of timm's models have them."""
    made = dict(state)
    for layer in range(layers):
        block = f"blocks.{layer}.attn"
        parts = [made.pop(f"{block}.{part}_proj.weight") for part in "qkv"]
        made[f"{block}.qkv.weight"] = torch.cat(parts)
        for part in "qv":
            if f"{block}.{part}_proj.bias" in made:
                made[f"{block}.{part}_bias"] = made.pop(f"{block}.{part}_proj.bias")
    return made


def _turned(
    state: State, config: ImageClassifierConfig, moved: Callable[[Tensor, int], Tensor]
) -> State:
    """Return a state whose queries' and keys' rows are moved, if they are turned at all."""
    if config.grid_positions == "none":
        return state
    return {
        name: moved(tensor, config.head_width)
        if ".q_proj." in name or ".k_proj." in name
        else tensor
        for name, tensor in state.items()
    }


def _to_halves(rows: Tensor, head_width: int) -> Tensor:
    pairs_of_heads = rows.unflatten(0, (-1, head_width // 2, 2))
    return pairs_of_heads.transpose(1, 2).flatten(0, 2)


def _to_neighbours(rows: Tensor, head_width: int) -> Tensor:
    halves_of_heads = rows.unflatten(0, (-1, 2, head_width // 2))
    return halves_of_heads.transpose(1, 2).flatten(0, 2)


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which, with queries, keys and values apart."""
    made = timm.pairs(config)
    apart = config.activation == "swiglu" and config.row.name != "pre"
    for layer in range(config.layers):
        mine, their = f"encoder.layers.{layer}", f"blocks.{layer}"
        projection = f"{mine}.self_attention.attention.qkv_proj"
        given = "qv" if config.biased("q") else ""
        made += [
            Pair(f"{projection}.weight", tuple(f"{their}.attn.{p}_proj.weight" for p in "qkv")),
            Pair(f"{projection}.bias", tuple(f"{their}.attn.{p}_proj.bias" for p in given)),
        ]
        layers = timm.layer_pairs(mine, their)
        if apart:
            layers = [pair for pair in layers if ".mlp.fc1." not in pair.ours]
            layers += [
                Pair(
                    f"{mine}.feed_forward.mlp.fc1.{kind}",
                    tuple(f"{their}.mlp.fc1_{part}.{kind}" for part in "gx"),
                )
                for kind in ("weight", "bias")
            ]
        made += layers
        made += timm.scale_pairs(mine, f"{their}.gamma_1", f"{their}.gamma_2")
    return made
