"""transformers' Kosmos-2 text model as our language model, and back: it is Sub-LN throughout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from magneto.hf.formats.layout import Pair, activation, module, require, their_activation
from magneto.language.config import LanguageModelConfig


def ours(config: Any) -> LanguageModelConfig:
    """Return our configuration: Sub-LN, and fairseq's sinusoids as a table of positions.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    require(config, add_cross_attention=False, layerdrop=0.0)
    return LanguageModelConfig(
        width=config.embed_dim, layers=config.layers, heads=config.attention_heads,
        ffn_width=config.ffn_dim, placement="sub",
        activation=activation(config.activation_function), norm_eps=config.layer_norm_eps,
        positions="learned", max_length=config.max_position_embeddings,
        vocab_size=config.vocab_size, tie_embeddings=config.tie_word_embeddings,
        embedding_scale="sqrt_width" if config.scale_embedding else "none",
        dropout=config.dropout, attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    )  # fmt: skip


def theirs(config: LanguageModelConfig) -> dict[str, Any]:
    """Return the values of a Kosmos2TextConfig."""
    return {
        "pad_token_id": 1, "embed_dim": config.width, "layers": config.layers,
        "attention_heads": config.heads, "ffn_dim": config.ffn_width,
        "layer_norm_eps": config.norm_eps,
        "activation_function": their_activation(config.activation),
        "max_position_embeddings": config.max_length, "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "scale_embedding": config.embedding_scale == "sqrt_width", "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
    }  # fmt: skip


def pairs(config: LanguageModelConfig) -> list[Pair]:
    """Return which tensor is which of a Kosmos2TextForCausalLM; it has no tensor of positions."""
    made = [*module("embedding.table", "embed_tokens"), *module("decoder.final_norm", "layer_norm")]
    if not config.tie_embeddings:
        made += module("head", "lm_head")
    for layer in range(config.layers):
        mine, their = f"decoder.layers.{layer}", f"layers.{layer}"
        parts = [f"{their}.self_attn.{part}_proj" for part in "qkv"]
        made += module(f"{mine}.self_attention.attention.qkv_proj", *parts)
        names = {
            "self_attention.before": "self_attn_layer_norm",
            "self_attention.attention.inside": "self_attn.inner_attn_ln",
            "self_attention.attention.out_proj": "self_attn.out_proj",
            "feed_forward.before": "final_layer_norm",
            "feed_forward.mlp.fc1": "ffn.fc1",
            "feed_forward.mlp.inside": "ffn.ffn_layernorm",
            "feed_forward.mlp.fc2": "ffn.fc2",
        }
        for name, other in names.items():
            made += module(f"{mine}.{name}", f"{their}.{other}")
    return made


def fairseq_sinusoids(rows: int, width: int, first: int) -> Tensor:
    """Return fairseq's sinusoidal positions, (rows, width), from number `first` on.

    Sines, then cosines. The wavelengths run from 2 pi to 10000 * 2 pi with both ends among them;
    ours, as Marian's, stop one step before the end.
    """
    half = width // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angles = torch.arange(first, first + rows).float()[:, None] * frequency
    return torch.nn.functional.pad(torch.cat((angles.sin(), angles.cos()), 1), (0, width % 2))
