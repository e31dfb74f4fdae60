"""transformers' Llama and Mistral as our language model, and back.

They share their names: RMSNorm, rotary positions, a gated feed-forward network, no biases.
"""

from __future__ import annotations

from typing import Any

from magneto.hf.formats.layout import Pair, module, require
from magneto.language.config import LanguageModelConfig

GATES = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "relu": "reglu",
    "relu2": "relu2_glu",
}
"""Our gated units by the activation that transformers names."""


def ours(config: Any) -> LanguageModelConfig:
    """Return Llama's configuration as ours: Pre-LN.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    require(config, mlp_bias=False)
    return LanguageModelConfig(**values(config), placement="pre", **gate(config.hidden_act))


def ours_mistral(config: Any) -> LanguageModelConfig:
    """Return Mistral's configuration as ours: Pre-LN, a window in every layer."""
    window = getattr(config, "sliding_window", None)
    windows = () if window is None else (window,)
    own = gate(config.hidden_act)
    return LanguageModelConfig(**values(config), placement="pre", windows=windows, **own)


def gate(name: str) -> dict[str, Any]:
    """Return our gated unit of an activation of theirs.

    Raises:
        ValueError: If there is none.
    """
    if name not in GATES:
        raise ValueError(f"no activation {name!r} here: there are {', '.join(GATES)}")
    return {"activation": GATES[name]}


def values(config: Any) -> dict[str, Any]:
    """Return the values of our configuration that all of this family have.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    require(config, attention_bias=False)
    rope = config.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"{config.model_type} with rope_parameters={rope} has no counterpart here "
                         "(only rope_type 'default')")  # fmt: skip
    return {
        "width": config.hidden_size, "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads, "key_value_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None), "ffn_width": config.intermediate_size,
        "norm": "rmsnorm", "norm_eps": config.rms_norm_eps, "bias": False, "positions": "rotary",
        "rotary_base": rope["rope_theta"], "max_length": config.max_position_embeddings,
        "vocab_size": config.vocab_size, "tie_embeddings": config.tie_word_embeddings,
        "embedding_scale": "none", "attention_dropout": config.attention_dropout,
    }  # fmt: skip


def theirs(config: LanguageModelConfig) -> dict[str, Any]:
    """Return the values of a LlamaConfig."""
    names = {ours: theirs for theirs, ours in GATES.items()}
    return {
        "hidden_size": config.width, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "head_dim": config.head_width,
        "num_key_value_heads": config.key_value_heads or config.heads,
        "intermediate_size": config.ffn_width, "rms_norm_eps": config.norm_eps,
        "hidden_act": names.get(config.activation, config.activation),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "max_position_embeddings": config.max_length, "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_dropout": config.attention_dropout,
    }  # fmt: skip


def theirs_mistral(config: LanguageModelConfig) -> dict[str, Any]:
    """Return the values of a MistralConfig."""
    return theirs(config) | {"sliding_window": config.window(0)}


def pairs(config: LanguageModelConfig) -> list[Pair]:
    """Return which tensor is which of a LlamaForCausalLM or a MistralForCausalLM."""
    made = [*module("embedding.table", "embed_tokens"), *module("decoder.final_norm", "norm")]
    if not config.tie_embeddings:
        made += module("head", "lm_head")
    rows = (config.attention_width, config.key_value_width, config.key_value_width)
    for layer in range(config.layers):
        mine, their = f"decoder.layers.{layer}", f"layers.{layer}"
        attention, mlp = f"{mine}.self_attention.attention", f"{mine}.feed_forward.mlp"
        made += module(f"{mine}.self_attention.before", f"{their}.input_layernorm")
        made += module(f"{mine}.feed_forward.before", f"{their}.post_attention_layernorm")
        parts = tuple(f"{their}.self_attn.{part}_proj.weight" for part in "qkv")
        made.append(Pair(f"{attention}.qkv_proj.weight", parts, rows=rows))
        made += module(f"{attention}.out_proj", f"{their}.self_attn.o_proj")
        made += module(f"{mlp}.fc1", f"{their}.mlp.gate_proj", f"{their}.mlp.up_proj")
        made += module(f"{mlp}.fc2", f"{their}.mlp.down_proj")
    return made
