"""transformers' BART and Marian as our encoder-decoder, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from magneto.hf.formats.layout import (
    Pair,
    activation,
    add_two,
    module,
    require,
    skip_two,
    their_activation,
)
from magneto.translation.config import TranslationConfig


def ours(config: Any) -> TranslationConfig:
    """Return BART's configuration as ours: Post-LN, learned positions, a norm on the embeddings.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    return TranslationConfig(**_values(config), positions="learned", input_norm="layernorm")


def ours_marian(config: Any) -> TranslationConfig:
    """Return Marian's configuration as ours: Post-LN, sinusoidal positions."""
    require(config, share_encoder_decoder_embeddings=True)
    return TranslationConfig(**_values(config), positions="sinusoidal", input_norm="none")


def _values(config: Any) -> dict[str, Any]:
    require(config, encoder_attention_heads=config.decoder_attention_heads,
            encoder_ffn_dim=config.decoder_ffn_dim, tie_word_embeddings=True,
            encoder_layerdrop=0.0, decoder_layerdrop=0.0)  # fmt: skip
    return {
        "width": config.d_model, "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers, "heads": config.decoder_attention_heads,
        "ffn_width": config.decoder_ffn_dim, "placement": "post",
        "activation": activation(config.activation_function),
        "max_length": config.max_position_embeddings, "vocab_size": config.vocab_size,
        "embedding_scale": "sqrt_width" if config.scale_embedding else "none",
        "dropout": config.dropout, "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
    }  # fmt: skip


def theirs(config: TranslationConfig) -> dict[str, Any]:
    """Return the values of a BartConfig or a MarianConfig."""
    return {
        "d_model": config.width, "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers, "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads, "encoder_ffn_dim": config.ffn_width,
        "decoder_ffn_dim": config.ffn_width,
        "activation_function": their_activation(config.activation),
        "max_position_embeddings": config.max_length, "vocab_size": config.vocab_size,
        "scale_embedding": config.embedding_scale == "sqrt_width", "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
    }  # fmt: skip


def pairs(config: TranslationConfig) -> list[Pair]:
    """Return which tensor is which of a BartForConditionalGeneration."""
    made = marian_pairs(config)
    for stack in ("encoder", "decoder"):
        mine = f"transformer.{stack}"
        table = f"{mine}.position_embedding.table.weight"
        made.append(Pair(table, (f"{stack}.embed_positions.weight",), skip_two, add_two))
        made += module(f"{mine}.input_norm", f"{stack}.layernorm_embedding")
    return made


def marian_pairs(config: TranslationConfig) -> list[Pair]:
    """Return which tensor is which of a MarianMTModel."""
    made = module("embedding.table", "shared")
    made.append(Pair("logits_bias", ("final_logits_bias",), flat, row))
    for stack in ("encoder", "decoder"):
        for layer in range(getattr(config, f"{stack}_layers")):
            mine, their = f"transformer.{stack}.layers.{layer}", f"{stack}.layers.{layer}"
            parts = [f"{their}.self_attn.{part}_proj" for part in "qkv"]
            made += module(f"{mine}.self_attention.attention.qkv_proj", *parts)
            names = {
                "self_attention.attention.out_proj": "self_attn.out_proj",
                "self_attention.after": "self_attn_layer_norm",
                "feed_forward.mlp.fc1": "fc1",
                "feed_forward.mlp.fc2": "fc2",
                "feed_forward.after": "final_layer_norm",
            }
            if stack == "decoder":
                names["cross_attention.after"] = "encoder_attn_layer_norm"
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    names[f"cross_attention.attention.{part}"] = f"encoder_attn.{part}"
            for name, other in names.items():
                made += module(f"{mine}.{name}", f"{their}.{other}")
    return made


def flat(bias: Tensor) -> Tensor:
    """Return a bias (1, vocabulary) as (vocabulary,)."""
    return bias.flatten()


def row(bias: Tensor) -> Tensor:
    """Return a bias (vocabulary,) as (1, vocabulary)."""
    return bias[None]
