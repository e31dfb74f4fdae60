"""transformers' Kosmos-2 text model as our language model, and back: it is Sub-LN throughout.

Fairseq's sinusoids are a table of positions in ours.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from magneto.hf.weights.layout import Format, State, activation, scaled
from magneto.language.config import LanguageModelConfig
from magneto.language.models import LanguageModel


def fairseq_sinusoids(rows: int, width: int, first: int) -> Tensor:
    """Return fairseq's sinusoidal positions, (rows, width), from number `first` on.

    Sines, then cosines. The wavelengths run from 2 pi to 10000 * 2 pi with both ends among them;
    ours, as Marian's, stop one step before the end.
    """
    half = width // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angles = torch.arange(first, first + rows).float()[:, None] * frequency
    return torch.nn.functional.pad(torch.cat((angles.sin(), angles.cos()), 1), (0, width % 2))


def positions(their_config: Any, our_config: LanguageModelConfig) -> State:
    """Return the table that theirs computes."""
    first = their_config.pad_token_id + 1
    table = fairseq_sinusoids(our_config.max_length, our_config.width, first)
    return {"decoder.position_embedding.table.weight": table}


FORMATS = (
    Format(
        "kosmos_2_text_model", "Kosmos2TextConfig", ("Kosmos2TextForCausalLM", "Kosmos2TextModel"),
        LanguageModel, LanguageModelConfig,
        fields={
            "width": "embed_dim", "layers": "layers", "heads": "attention_heads",
            "ffn_width": "ffn_dim", "activation": activation("activation_function"),
            "norm_eps": "layer_norm_eps", "max_length": "max_position_embeddings",
            "vocab_size": "vocab_size", "tie_embeddings": "tie_word_embeddings",
            "embedding_scale": scaled("scale_embedding"), "dropout": "dropout",
            "attention_dropout": "attention_dropout", "activation_dropout": "activation_dropout",
        },
        fixed={"placement": "sub", "positions": "learned"},
        required={"add_cross_attention": False, "layerdrop": 0.0},
        write=lambda config: {"pad_token_id": 1},
        modules={
            "embedding.table": "embed_tokens", "decoder.final_norm": "layer_norm",
            "head": "lm_head",
        },
        layers=(
            ("decoder.layers", "layers", {
                "self_attention.before": "self_attn_layer_norm",
                "self_attention.attention.qkv_proj": (
                    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                ),
                "self_attention.attention.inside": "self_attn.inner_attn_ln",
                "self_attention.attention.out_proj": "self_attn.out_proj",
                "feed_forward.before": "final_layer_norm",
                "feed_forward.mlp.fc1": "ffn.fc1",
                "feed_forward.mlp.inside": "ffn.ffn_layernorm",
                "feed_forward.mlp.fc2": "ffn.fc2",
            }),
        ),
        ignored="^lm_head",
        computed=positions,
    ),
)  # fmt: skip
