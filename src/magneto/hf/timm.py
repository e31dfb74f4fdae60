"""Formats of timm's image classifiers: ViT, DeiT, BEiT-3, BEiT, BEiT v2, EVA and EVA-02.

Most fields of a model's configuration follow from the weights. The rest follow from timm's
arguments, given by the user or by config.json.

EVA (arXiv 2303.11331) rotates the dimensions 2i and 2i + 1 of a head together. Magneto rotates i
and i + d/2 together, for a head of d dimensions. A conversion permutes the rows of the projections
between timm's order and Magneto's order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from magneto.hf.layout import (
    ROW,
    SAME,
    TOKEN,
    Layout,
    Names,
    State,
    WeightFormat,
    activation,
    square,
    tensor,
)
from magneto.vision.config import ImageClassifierConfig
from magneto.vision.models import ImageClassifier

CONFIG = "config.json"
# Numbers of heads by model width, where timm's heads do not have width 64.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}
HEAD_WIDTH = 64
# Architectures that compute something else although their tensors have the same names.
UNSUPPORTED = ("quickgelu", "siglip", "_rpn_", "eva02_enormous")
# Reference grid of all released EVA-02 models.
REFERENCE = 16
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
TABLE = "relative_position_bias_table"
SHARED = f"rel_pos_bias.{TABLE}"
LAYER, BLOCK = "encoder.layers.*", "blocks.*"
QKV = f"{LAYER}.self_attention.attention.qkv_proj"
COMMON: Names = {
    "class_token.vector": tensor("cls_token", layout=TOKEN),
    "encoder.position_embedding.table.weight": tensor("pos_embed", layout=ROW),
    "embedding.proj": "patch_embed.proj", "pooled_norm": "fc_norm", "encoder.final_norm": "norm",
    "head": "head",
    f"{LAYER}.self_attention.before": f"{BLOCK}.norm1",
    f"{LAYER}.self_attention.attention.inside": f"{BLOCK}.attn.norm",
    f"{LAYER}.self_attention.attention.out_proj": f"{BLOCK}.attn.proj",
    f"{LAYER}.feed_forward.before": f"{BLOCK}.norm2",
    f"{LAYER}.feed_forward.mlp.fc1": f"{BLOCK}.mlp.fc1",
    f"{LAYER}.feed_forward.mlp.inside": f"{BLOCK}.mlp.norm",
    f"{LAYER}.feed_forward.mlp.fc2": f"{BLOCK}.mlp.fc2",
}  # fmt: skip
"""Map from Magneto's names to timm's names, without the projections of queries, keys and values."""


def head_count(width: int, args: Mapping[str, Any]) -> int:
    """Return `num_heads` from the arguments, by default timm's number of heads for `width`."""
    if "num_heads" in args:
        return args["num_heads"]
    if width not in HEADS and width % HEAD_WIDTH:
        raise ValueError(f"the number of heads does not follow from width {width}. Give --config "
                         'FILE with {"num_heads": 4}.')  # fmt: skip
    return HEADS.get(width, width // HEAD_WIDTH)


def table_side(state: State, args: Mapping[str, Any], patch: int) -> int:
    if "pos_embed" in state:
        return square(state["pos_embed"].shape[1] - ("cls_token" in state))
    table = next((t for n, t in state.items() if n.endswith(TABLE)), None)
    if table is not None:
        return (math.isqrt(len(table) - 3) + 1) // 2
    if "img_size" not in args:
        raise ValueError('unknown image size. Give --config FILE with {"img_size": 224}.')
    if not isinstance(args["img_size"], int):
        raise ValueError(f"img_size must be a whole number, not {args['img_size']!r}")
    return args["img_size"] // patch


def shape(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    architecture = str(args.get("architecture", ""))
    if any(word in architecture for word in UNSUPPORTED):
        raise ValueError(f"timm's {architecture} is not supported")
    pool = args.get("global_pool")
    if isinstance(pool, str) and pool not in ("token", "avg"):  # in MAE's code, a boolean
        raise ValueError(f"global_pool {pool!r} is not supported, only 'token' and 'avg'")
    if "dist_token" in state:
        raise ValueError("a distillation token (dist_token) is not supported")
    width, channels, patch, _ = state["patch_embed.proj.weight"].shape
    side = table_side(state, args, patch)
    token = "learned" if "cls_token" in state else "none"
    scaled = any(name.endswith(("ls1.gamma", "gamma_1")) for name in state)
    pooling = "mean" if token == "none" or pool == "avg" else "first"
    blocks = [int(name.split(".")[1]) for name in state if name.startswith("blocks.")]
    return {
        "width": width, "layers": 1 + max(blocks), "heads": head_count(width, args),
        "ffn_width": state["blocks.0.mlp.fc2.weight"].shape[1], "channels": channels,
        "image_size": side * patch, "patch_size": patch, "classes": len(state["head.weight"]),
        "class_token": token, "pooling": "mean_then_norm" if "fc_norm.weight" in state else pooling,
        "positions": "learned" if "pos_embed" in state else "none",
        "max_length": side**2 + ("cls_token" in state), "placement": placement(state),
        "layer_scale": (args.get("init_values") or 1e-5) if scaled else None,
    }  # fmt: skip


def placement(state: State) -> str:
    if "blocks.0.attn.norm.weight" in state:
        return "sub"
    return "eva02" if "blocks.0.mlp.norm.weight" in state else "pre"


def arguments(config: ImageClassifierConfig) -> dict[str, Any]:
    ratio = config.ffn_width / config.width
    if int(config.width * ratio) != config.ffn_width:  # timm rounds down
        ratio = (config.ffn_width + 0.5) / config.width
    return {
        "img_size": config.image_size, "patch_size": config.patch_size, "in_chans": config.channels,
        "num_classes": config.classes, "embed_dim": config.width, "depth": config.layers,
        "num_heads": config.heads, "mlp_ratio": ratio, "init_values": config.layer_scale,
        "global_pool": "token" if config.pooling == "first" else "avg",
        "qkv_bias": config.biased("q"), "norm_eps": config.norm_eps,
    }  # fmt: skip


def scales(attention: str, feed_forward: str) -> Names:
    return {
        f"{LAYER}.self_attention.layer_scale.weight": tensor(f"{BLOCK}.{attention}"),
        f"{LAYER}.feed_forward.layer_scale.weight": tensor(f"{BLOCK}.{feed_forward}"),
    }


class Timm(WeightFormat):
    """Format of timm's image classifiers.

    `architectures` maps each supported epsilon of the norms to the name of a timm model.
    """

    model = ImageClassifier
    architectures: ClassVar[Mapping[float, str]]

    def arguments_file(self, config: Any, args: dict[str, Any]) -> dict[str, Any]:
        """Return config.json for `timm.create_model("local-dir:DIR", pretrained=True)`."""
        if config.norm_eps not in self.architectures:
            allowed = " or ".join(map(str, self.architectures))
            raise ValueError(f"{self.name} cannot represent this model: norm_eps is "
                             f"{config.norm_eps}, but must be {allowed}")  # fmt: skip
        return {
            "architecture": self.architectures[config.norm_eps], "num_classes": config.classes,
            "num_features": config.width, "global_pool": args["global_pool"],
            "model_args": {name: value for name, value in args.items() if name != "norm_eps"},
            "pretrained_cfg": {
                "input_size": [config.channels, config.image_size, config.image_size],
                "num_classes": config.classes, "fixed_input_size": True,
                "first_conv": "patch_embed.proj", "classifier": "head",
            },
        }  # fmt: skip


class _Vit(Timm):
    """Format of timm's VisionTransformer."""

    name, placements = "timm_vit", ("pre", "sub")
    architectures: ClassVar = {1e-6: "vit_base_patch16_224", 1e-5: "beit3_base_patch16_224"}
    refused: ClassVar = {"norm_layer": None, "pool_include_prefix": False}

    def fits(self, state: Mapping[str, Tensor], args: Mapping[str, Any]) -> bool:
        return "blocks.0.attn.qkv.weight" in state

    def read(self, state: State, args: Mapping[str, Any]) -> ImageClassifierConfig:
        known = shape(state, args)
        default = "beit3" if known["placement"] == "sub" else ""
        beit3 = str(args.get("architecture", default)).startswith("beit3")
        function = activation("act_layer", {name: name for name in ACTIVATIONS}).read
        return ImageClassifierConfig(
            **known, activation=function(args.get("act_layer") or "gelu"),
            norm_eps=args.get("norm_eps", 1e-5 if beit3 else 1e-6),
            unbiased=() if "blocks.0.attn.qkv.bias" in state else ("q", "k", "v"),
        )  # fmt: skip

    def write(self, config: Any) -> dict[str, Any]:
        sub = config.row.name == "sub"
        return {
            **arguments(config), "act_layer": config.activation, "scale_attn_norm": sub,
            "scale_mlp_norm": sub, "class_token": config.class_token == "learned",
            "fc_norm": config.pooling == "mean_then_norm",
            "pos_embed": "learn" if config.positions == "learned" else "none",
        }  # fmt: skip

    def names(self, config: Any, state: State | None) -> Names:
        return {**COMMON, **scales("ls1.gamma", "ls2.gamma"), QKV: f"{BLOCK}.attn.qkv"}


class _Beit(Timm):
    """Format of timm's Beit."""

    name, placements = "timm_beit", ("pre",)
    architectures: ClassVar = {1e-6: "beit_base_patch16_224"}

    def fits(self, state: Mapping[str, Tensor], args: Mapping[str, Any]) -> bool:
        named = str(args.get("architecture", "")).startswith("beit")
        tables = SHARED in state or f"blocks.0.attn.{TABLE}" in state
        return tables or (named and "blocks.0.attn.q_bias" in state)

    def read(self, state: State, args: Mapping[str, Any]) -> ImageClassifierConfig:
        own, shared = f"blocks.0.attn.{TABLE}" in state, SHARED in state
        if "cls_token" not in state:
            raise ValueError("timm's Beit needs a class token (cls_token)")
        return ImageClassifierConfig(
            **shape(state, args), norm_eps=1e-6,
            grid_positions="relative_bias" if own else "shared_relative_bias" if shared else "none",
            unbiased=("k",) if "blocks.0.attn.q_bias" in state else ("q", "k", "v"),
        )  # fmt: skip

    def write(self, config: Any) -> dict[str, Any]:
        return {
            **arguments(config),
            "use_fc_norm": config.pooling == "mean_then_norm",
            "use_abs_pos_emb": config.positions == "learned",
            "use_rel_pos_bias": config.grid_positions == "relative_bias",
            "use_shared_rel_pos_bias": config.grid_positions == "shared_relative_bias",
        }

    def names(self, config: Any, state: State | None) -> Names:
        tables = f"{LAYER}.self_attention.attention.positions.bias.weight"
        return {
            **COMMON,
            **scales("gamma_1", "gamma_2"),
            f"{QKV}.weight": tensor(f"{BLOCK}.attn.qkv.weight"),
            f"{QKV}.bias": tensor(*(f"{BLOCK}.attn.{part}_bias" for part in "qkv")),
            tables: tensor(f"{BLOCK}.attn.{TABLE}"),
            "encoder.grid_positions.bias.weight": tensor(SHARED),
        }


class _Eva(Timm):
    """Format of timm's Eva."""

    name, placements = "timm_eva", ("pre", "eva02", "sub")
    architectures: ClassVar = {
        1e-6: "eva02_base_patch14_224", 1e-5: "vit_pe_core_base_patch16_224"
    }  # fmt: skip
    refused: ClassVar = {
        "rope_type": "cat", "rope_grid_offset": 0.0, "rope_grid_indexing": "ij",
        "rope_rotate_half": False, "attn_type": "eva", "no_embed_class": False,
        "use_post_norm": False,
    }  # fmt: skip

    def fits(self, state: Mapping[str, Tensor], args: Mapping[str, Any]) -> bool:
        return bool({"blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight"} & state.keys())

    def read(self, state: State, args: Mapping[str, Any]) -> ImageClassifierConfig:
        name = str(args.get("architecture", "eva"))
        if not name.startswith("eva") and "use_rot_pos_emb" not in args:
            raise ValueError(f"timm's {name} is not supported, only EVA and EVA-02")
        known = shape(state, args)
        fc1 = state.get("blocks.0.mlp.fc1.weight")
        gated = fc1 is None or len(fc1) == 2 * known["ffn_width"]
        rotary = bool(args.get("use_rot_pos_emb", gated))
        grid = args.get("ref_feat_shape", REFERENCE) if rotary else None
        rows = {grid} if grid is None or isinstance(grid, int) else set(grid)
        if len(rows) > 1:
            raise ValueError(f"ref_feat_shape {grid} is not square")
        biased = {"blocks.0.attn.q_proj.bias", "blocks.0.attn.q_bias"} & state.keys()
        return ImageClassifierConfig(
            **known, activation="swiglu" if gated else "gelu",
            norm_eps=args.get("norm_eps", 1e-5 if name == self.architectures[1e-5] else 1e-6),
            grid_positions="rotary" if rotary else "none", reference_grid=rows.pop(),
            rotary_base=args.get("rope_temperature", 10000.0),
            unbiased=("k",) if biased else ("q", "k", "v"),
        )  # fmt: skip

    def write(self, config: Any) -> dict[str, Any]:
        # All arguments, because the architecture's defaults belong to another model.
        after, row = config.pooling == "mean_then_norm", config.row.name
        return {
            **arguments(config), "qkv_fused": row == "pre",
            "swiglu_mlp": config.activation == "swiglu",
            "scale_mlp": row != "pre", "scale_attn_inner": row == "sub", "use_fc_norm": after,
            "use_post_transformer_norm": not after, "use_pre_transformer_norm": False,
            "class_token": config.class_token == "learned",
            "use_abs_pos_emb": config.positions == "learned",
            "use_rot_pos_emb": config.grid_positions == "rotary", "attn_type": "eva",
            "ref_feat_shape": config.reference_grid, "rope_temperature": config.rotary_base,
            "rope_grid_offset": 0.0, "rope_grid_indexing": "ij",
        }  # fmt: skip

    def names(self, config: Any, state: State | None) -> Names:
        fused = config.row.name == "pre" if state is None else "blocks.0.attn.qkv.weight" in state
        weights = ["qkv.weight"] if fused else [f"{part}_proj.weight" for part in "qkv"]
        biases = [f"{part}_bias" if fused else f"{part}_proj.bias" for part in "qkv"]
        biased = "".join(part for part in "qkv" if config.biased(part))
        names = {
            **COMMON,
            **scales("gamma_1", "gamma_2"),
            f"{QKV}.weight": tensor(
                *(f"{BLOCK}.attn.{name}" for name in weights), layout=turned(config, "qkv")
            ),
            f"{QKV}.bias": tensor(
                *(f"{BLOCK}.attn.{name}" for name in biases), layout=turned(config, biased)
            ),
        }
        if config.activation == "swiglu" and config.row.name != "pre":
            names[f"{LAYER}.feed_forward.mlp.fc1"] = (f"{BLOCK}.mlp.fc1_g", f"{BLOCK}.mlp.fc1_x")
        return names


def turned(config: ImageClassifierConfig, parts: str) -> Layout:
    # Queries and keys: see the module's docstring.
    if config.grid_positions == "none":
        return SAME
    half = config.head_width // 2

    def moved(stacked: Tensor, inner: tuple[int, int]) -> Tensor:
        rows = zip(parts, stacked.chunk(len(parts)), strict=True)
        return torch.cat([
            row if part == "v" else row.unflatten(0, (-1, *inner)).transpose(1, 2).flatten(0, 2)
            for part, row in rows
        ])  # fmt: skip

    return Layout(lambda stacked: moved(stacked, (half, 2)),
                  lambda stacked: moved(stacked, (2, half)))  # fmt: skip


# The first that fits is used: a Beit has an Eva's names and more.
FORMATS = (_Beit(), _Eva(), _Vit())
