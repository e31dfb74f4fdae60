"""transformers' Llama and Mistral as our language model, and back.

They share their names: Pre-LN, RMSNorm, rotary positions, a gated feed-forward network, no biases.
Mistral has a window in every layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magneto.hf.weights.layout import Format, Pair, activation
from magneto.language.config import LanguageModelConfig
from magneto.language.models import LanguageModel

GATES = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "relu": "reglu",
    "relu2": "relu2_glu",
}
"""Our gated units by the activation that transformers names."""


def read(config: Any) -> dict[str, Any]:
    """Return our values that are no fields of theirs.

    Raises:
        ValueError: For rotary positions that are scaled or partial.
    """
    rope = config.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"{config.model_type} with rope_parameters={rope} has no counterpart here "
                         "(only rope_type 'default')")  # fmt: skip
    window = getattr(config, "sliding_window", None)
    return {"rotary_base": rope["rope_theta"], "windows": () if window is None else (window,)}


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Return their values that are no fields of ours."""
    return {
        "head_dim": config.head_width,
        "num_key_value_heads": config.key_value_heads or config.heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
    }


def projections(config: LanguageModelConfig) -> list[Pair]:
    """Return the queries, keys and values of all layers: there may be fewer keys than queries."""
    rows = (config.attention_width, config.key_value_width, config.key_value_width)
    return [
        Pair(
            f"decoder.layers.{layer}.self_attention.attention.qkv_proj.weight",
            tuple(f"layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"),
            rows=rows,
        )
        for layer in range(config.layers)
    ]


LLAMA = Format(
    "llama", "LlamaConfig", ("LlamaForCausalLM", "LlamaModel"), LanguageModel, LanguageModelConfig,
    fields={
        "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
        "key_value_heads": "num_key_value_heads", "head_dim": "head_dim",
        "ffn_width": "intermediate_size", "activation": activation("hidden_act", GATES),
        "norm_eps": "rms_norm_eps", "max_length": "max_position_embeddings",
        "vocab_size": "vocab_size", "tie_embeddings": "tie_word_embeddings",
        "attention_dropout": "attention_dropout",
    },
    fixed={
        "placement": "pre", "norm": "rmsnorm", "bias": False, "positions": "rotary",
        "embedding_scale": "none",
    },
    required={"attention_bias": False, "mlp_bias": False},
    read=read,
    write=write,
    modules={
        "embedding.table": "embed_tokens", "decoder.final_norm": "norm", "head": "lm_head",
    },
    layers=(
        ("decoder.layers", "layers", {
            "self_attention.before": "input_layernorm",
            "self_attention.attention.out_proj": "self_attn.o_proj",
            "feed_forward.before": "post_attention_layernorm",
            "feed_forward.mlp.fc1": ("mlp.gate_proj", "mlp.up_proj"),
            "feed_forward.mlp.fc2": "mlp.down_proj",
        }),
    ),
    tensors=projections,
    ignored="^lm_head",
)  # fmt: skip
FORMATS = (
    LLAMA,
    replace(
        LLAMA, name="mistral", config="MistralConfig",
        classes=("MistralForCausalLM", "MistralModel"),
        write=lambda config: write(config) | {"sliding_window": config.window(0)},
    ),
)  # fmt: skip
