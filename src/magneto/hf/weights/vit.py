"""transformers' ViT, BEiT (arXiv 2106.08254) and BEiT v2 as our image classifier, and back.

All are Pre-LN. BEiT has no biases of keys, LayerScale, and relative positions: a table of biases in
each layer, or one for all, beside learned positions or in their place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magneto.hf.weights.layout import (
    Format,
    Pair,
    activation,
    as_row,
    as_token,
    first,
    require,
    squeezed,
)
from magneto.vision.config import ImageClassifierConfig
from magneto.vision.encoder import ImageClassifier

LAYER = {
    "self_attention.before": "layernorm_before",
    "self_attention.attention.out_proj": "attention.o_proj",
    "feed_forward.before": "layernorm_after",
    "feed_forward.mlp.fc1": "mlp.fc1",
    "feed_forward.mlp.fc2": "mlp.fc2",
}
TABLE = "relative_position_bias_table"


def length(config: Any) -> int:
    """Return the class token and the patches of their image."""
    size = ImageClassifierConfig(image_size=config.image_size, patch_size=config.patch_size)
    return 1 + size.patches


def read(config: Any) -> dict[str, Any]:
    """Return our values that are no fields of ViT's."""
    return {
        "max_length": length(config), "unbiased": () if config.qkv_bias else ("q", "k", "v"),
    }  # fmt: skip


def read_beit(config: Any) -> dict[str, Any]:
    """Return our values that are no fields of BEiT's.

    Raises:
        ValueError: For relative positions of each layer and shared ones.
    """
    if config.use_relative_position_bias:
        require(config, use_shared_relative_position_bias=False)
    shared = "shared_relative_bias" if config.use_shared_relative_position_bias else "none"
    return {
        "max_length": length(config), "layer_scale": config.layer_scale_init_value or None,
        "positions": "learned" if config.use_absolute_position_embeddings else "none",
        "grid_positions": "relative_bias" if config.use_relative_position_bias else shared,
        "pooling": "mean_then_norm" if config.use_mean_pooling else "first",
    }  # fmt: skip


def write_beit(config: ImageClassifierConfig) -> dict[str, Any]:
    """Return BEiT's values that are no fields of ours."""
    return {
        "layer_scale_init_value": config.layer_scale or 0.0,
        "use_absolute_position_embeddings": config.positions == "learned",
        "use_relative_position_bias": config.grid_positions == "relative_bias",
        "use_shared_relative_position_bias": config.grid_positions == "shared_relative_bias",
        "use_mean_pooling": config.pooling == "mean_then_norm",
    }


def embeddings(config: ImageClassifierConfig) -> list[Pair]:
    """Return ViT's tensors that are no modules'."""
    positions = "encoder.position_embedding.table.weight"
    return [
        Pair("class_token.vector", ("embeddings.cls_token",), squeezed, as_token),
        Pair(positions, ("embeddings.position_embeddings",), first, as_row),
    ]


def relative(config: ImageClassifierConfig) -> list[Pair]:
    """Return BEiT's tensors that are no modules', and its queries, keys and values."""
    made = embeddings(config)
    made.append(Pair("encoder.grid_positions.bias.weight", (f"shared_position_bias.{TABLE}",)))
    for layer in range(config.layers):
        mine, their = f"encoder.layers.{layer}", f"layers.{layer}"
        attention, projection = f"{mine}.self_attention.attention", f"{their}.attention"
        tables = f"{their}.relative_position_bias.{TABLE}"
        made += [
            Pair(f"{attention}.qkv_proj.weight",
                 tuple(f"{projection}.{part}_proj.weight" for part in "qkv")),
            Pair(f"{attention}.qkv_proj.bias",
                 tuple(f"{projection}.{part}_proj.bias" for part in "qv")),
            Pair(f"{attention}.positions.bias.weight", (tables,)),
            Pair(f"{mine}.self_attention.layer_scale.weight", (f"{their}.lambda_1",)),
            Pair(f"{mine}.feed_forward.layer_scale.weight", (f"{their}.lambda_2",)),
        ]  # fmt: skip
    return made


VIT = Format(
    "vit", "ViTConfig", ("ViTForImageClassification",), ImageClassifier, ImageClassifierConfig,
    fields={
        "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
        "ffn_width": "intermediate_size", "activation": activation("hidden_act"),
        "norm_eps": "layer_norm_eps", "image_size": "image_size", "patch_size": "patch_size",
        "channels": "num_channels", "classes": "num_labels", "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    },
    fixed={
        "placement": "pre", "class_token": "learned", "positions": "learned", "pooling": "first",
    },
    read=read,
    write=lambda config: {"qkv_bias": config.biased("q")},
    modules={
        "embedding.proj": "embeddings.patch_embeddings.projection",
        "encoder.final_norm": "layernorm",
        "head": "classifier",
    },
    layers=(
        ("encoder.layers", "layers", {
            **LAYER,
            "self_attention.attention.qkv_proj": (
                "attention.q_proj", "attention.k_proj", "attention.v_proj",
            ),
        }),
    ),
    tensors=embeddings,
    prefix="vit.", ignored=r"^pooler|mask_token$",
)  # fmt: skip
FORMATS = (
    VIT,
    replace(
        VIT, name="beit", config="BeitConfig", classes=("BeitForImageClassification",),
        fields={**VIT.fields, "drop_path": "drop_path_rate"},
        fixed={"placement": "pre", "class_token": "learned", "unbiased": ("k",)},
        read=read_beit,
        write=write_beit,
        modules={**VIT.modules, "pooled_norm": "pooler.layernorm"},
        layers=(("encoder.layers", "layers", LAYER),),
        tensors=relative,
        prefix="beit.", ignored=r"mask_token$|relative_position_index$",
        absent="relative_position_index$",
    ),
)  # fmt: skip
