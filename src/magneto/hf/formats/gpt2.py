"""transformers' GPT-2 as our language model, and back."""

from __future__ import annotations

from typing import Any

from magneto.hf.formats.layout import (
    Pair,
    activation,
    module,
    require,
    their_activation,
    transposed,
)
from magneto.language.config import LanguageModelConfig


def ours(config: Any) -> LanguageModelConfig:
    """Return our configuration: Pre-LN, learned positions.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    require(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False,
            add_cross_attention=False, reorder_and_upcast_attn=False)  # fmt: skip
    own = None if config.embd_pdrop == config.resid_pdrop else config.embd_pdrop
    return LanguageModelConfig(
        width=config.n_embd, layers=config.n_layer, heads=config.n_head,
        ffn_width=config.n_inner or 4 * config.n_embd, placement="pre",
        activation=activation(config.activation_function),
        norm_eps=config.layer_norm_epsilon, positions="learned", max_length=config.n_positions,
        vocab_size=config.vocab_size, tie_embeddings=config.tie_word_embeddings,
        embedding_scale="none", dropout=config.resid_pdrop, attention_dropout=config.attn_pdrop,
        embedding_dropout=own,
    )  # fmt: skip


def theirs(config: LanguageModelConfig) -> dict[str, Any]:
    """Return the values of a GPT2Config."""
    return {
        "n_embd": config.width, "n_layer": config.layers, "n_head": config.heads,
        "n_inner": config.ffn_width, "activation_function": their_activation(config.activation),
        "layer_norm_epsilon": config.norm_eps, "n_positions": config.max_length,
        "vocab_size": config.vocab_size, "tie_word_embeddings": config.tie_embeddings,
        "resid_pdrop": config.dropout, "embd_pdrop": config.input_dropout,
        "attn_pdrop": config.attention_dropout,
    }  # fmt: skip


def pairs(config: LanguageModelConfig) -> list[Pair]:
    """Return which tensor is which; theirs keeps matrices transposed, and qkv fused as ours."""
    made = [
        *module("embedding.table", "wte"),
        *module("decoder.position_embedding.table", "wpe"),
        *module("decoder.final_norm", "ln_f"),
    ]
    if not config.tie_embeddings:
        made += module("head", "lm_head")
    for layer in range(config.layers):
        mine, their = f"decoder.layers.{layer}", f"h.{layer}"
        made += module(f"{mine}.self_attention.before", f"{their}.ln_1")
        made += module(f"{mine}.feed_forward.before", f"{their}.ln_2")
        matrices = {
            "self_attention.attention.qkv_proj": "attn.c_attn",
            "self_attention.attention.out_proj": "attn.c_proj",
            "feed_forward.mlp.fc1": "mlp.c_fc",
            "feed_forward.mlp.fc2": "mlp.c_proj",
        }
        for name, other in matrices.items():
            made += module(f"{mine}.{name}", f"{their}.{other}", read=transposed, write=transposed)
    return made
