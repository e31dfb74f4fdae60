"""transformers' ViT as our image classifier, and back."""

from __future__ import annotations

from typing import Any

from magneto.hf.formats.layout import (
    Pair,
    activation,
    as_row,
    first,
    module,
    one,
    squeezed,
    their_activation,
)
from magneto.vision.config import ImageClassifierConfig


def ours(config: Any) -> ImageClassifierConfig:
    """Return our configuration: Pre-LN, learned positions, a class token that the head reads.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    size = ImageClassifierConfig(image_size=config.image_size, patch_size=config.patch_size)
    return ImageClassifierConfig(
        width=config.hidden_size, layers=config.num_hidden_layers,
        heads=config.num_attention_heads, ffn_width=config.intermediate_size, placement="pre",
        activation=activation(config.hidden_act), norm_eps=config.layer_norm_eps,
        positions="learned", max_length=1 + size.patches, image_size=config.image_size,
        patch_size=config.patch_size, channels=config.num_channels, classes=config.num_labels,
        class_token="learned", pooling="first", dropout=config.hidden_dropout_prob,
        unbiased=() if config.qkv_bias else ("q", "k", "v"),
        attention_dropout=config.attention_probs_dropout_prob,
    )  # fmt: skip


def theirs(config: ImageClassifierConfig) -> dict[str, Any]:
    """Return the values of a ViTConfig."""
    return {
        "hidden_size": config.width, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "intermediate_size": config.ffn_width,
        "hidden_act": their_activation(config.activation), "layer_norm_eps": config.norm_eps,
        "image_size": config.image_size, "patch_size": config.patch_size,
        "num_channels": config.channels, "num_labels": config.classes,
        "qkv_bias": config.biased("q"),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }  # fmt: skip


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which of a ViTForImageClassification."""
    positions = "encoder.position_embedding.table.weight"
    made = [
        Pair("class_token.vector", ("embeddings.cls_token",), squeezed, as_row),
        Pair(positions, ("embeddings.position_embeddings",), first, one),
        *module("embedding.proj", "embeddings.patch_embeddings.projection"),
        *module("encoder.final_norm", "layernorm"),
        *module("head", "classifier"),
    ]
    for layer in range(config.layers):
        mine, their = f"encoder.layers.{layer}", f"layers.{layer}"
        parts = [f"{their}.attention.{part}_proj" for part in "qkv"]
        made += module(f"{mine}.self_attention.attention.qkv_proj", *parts)
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
