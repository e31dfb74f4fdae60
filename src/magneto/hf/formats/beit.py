"""transformers' BEiT (arXiv 2106.08254) and BEiT v2 as our image classifier, and back.

Pre-LN without biases of keys, with LayerScale, and with relative positions: a table of biases in
each layer, or one for all, beside learned positions or in their place.
"""

from __future__ import annotations

from typing import Any

from magneto.hf.formats.layout import (
    Pair,
    activation,
    as_row,
    first,
    module,
    one,
    require,
    squeezed,
    their_activation,
)
from magneto.vision.config import ImageClassifierConfig

TABLE = "relative_position_bias_table"


def ours(config: Any) -> ImageClassifierConfig:
    """Return our configuration.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    if config.use_relative_position_bias:
        require(config, use_shared_relative_position_bias=False)
    size = ImageClassifierConfig(image_size=config.image_size, patch_size=config.patch_size)
    shared = "shared_relative_bias" if config.use_shared_relative_position_bias else "none"
    return ImageClassifierConfig(
        width=config.hidden_size, layers=config.num_hidden_layers,
        heads=config.num_attention_heads, ffn_width=config.intermediate_size, placement="pre",
        activation=activation(config.hidden_act), norm_eps=config.layer_norm_eps, unbiased=("k",),
        layer_scale=config.layer_scale_init_value or None, drop_path=config.drop_path_rate,
        positions="learned" if config.use_absolute_position_embeddings else "none",
        grid_positions="relative_bias" if config.use_relative_position_bias else shared,
        max_length=1 + size.patches, image_size=config.image_size, patch_size=config.patch_size,
        channels=config.num_channels, classes=config.num_labels, class_token="learned",
        pooling="mean_then_norm" if config.use_mean_pooling else "first",
        dropout=config.hidden_dropout_prob, attention_dropout=config.attention_probs_dropout_prob,
    )  # fmt: skip


def theirs(config: ImageClassifierConfig) -> dict[str, Any]:
    """Return the values of a BeitConfig."""
    return {
        "hidden_size": config.width, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "intermediate_size": config.ffn_width,
        "hidden_act": their_activation(config.activation), "layer_norm_eps": config.norm_eps,
        "image_size": config.image_size, "patch_size": config.patch_size,
        "num_channels": config.channels, "num_labels": config.classes,
        "layer_scale_init_value": config.layer_scale or 0.0, "drop_path_rate": config.drop_path,
        "use_absolute_position_embeddings": config.positions == "learned",
        "use_relative_position_bias": config.grid_positions == "relative_bias",
        "use_shared_relative_position_bias": config.grid_positions == "shared_relative_bias",
        "use_mean_pooling": config.pooling == "mean_then_norm",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }  # fmt: skip


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which of a BeitForImageClassification."""
    positions = "encoder.position_embedding.table.weight"
    made = [
        Pair("class_token.vector", ("embeddings.cls_token",), squeezed, as_row),
        Pair(positions, ("embeddings.position_embeddings",), first, one),
        Pair("encoder.grid_positions.bias.weight", (f"shared_position_bias.{TABLE}",)),
        *module("embedding.proj", "embeddings.patch_embeddings.projection"),
        *module("pooled_norm", "pooler.layernorm"),
        *module("encoder.final_norm", "layernorm"),
        *module("head", "classifier"),
    ]
    for layer in range(config.layers):
        made += _layer_pairs(f"encoder.layers.{layer}", f"layers.{layer}")
    return made


def _layer_pairs(mine: str, their: str) -> list[Pair]:
    projection = f"{mine}.self_attention.attention.qkv_proj"
    table = f"{their}.relative_position_bias.{TABLE}"
    made = [
        Pair(f"{projection}.weight", tuple(f"{their}.attention.{p}_proj.weight" for p in "qkv")),
        Pair(f"{projection}.bias", tuple(f"{their}.attention.{p}_proj.bias" for p in "qv")),
        Pair(f"{mine}.self_attention.attention.positions.bias.weight", (table,)),
        Pair(f"{mine}.self_attention.layer_scale.weight", (f"{their}.lambda_1",)),
        Pair(f"{mine}.feed_forward.layer_scale.weight", (f"{their}.lambda_2",)),
    ]
    names = {
        "self_attention.before": "layernorm_before",
        "self_attention.attention.out_proj": "attention.o_proj",
        "feed_forward.before": "layernorm_after",
        "feed_forward.mlp.fc1": "mlp.fc1",
        "feed_forward.mlp.fc2": "mlp.fc2",
    }
    for name, other in names.items():
        made += module(f"{mine}.{name}", f"{their}.{other}")
    return made
