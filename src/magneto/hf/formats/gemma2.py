"""transformers' Gemma 2 as our language model, and back: Peri-LN, windows in turn, capped logits.

Their norms multiply by 1 + weight, ours by weight: a one is added on the way, and taken off.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from magneto.hf.formats import llama
from magneto.hf.formats.layout import Pair, module, require
from magneto.language.config import LanguageModelConfig


def ours(config: Any) -> LanguageModelConfig:
    """Return our configuration.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    require(config, query_pre_attn_scalar=config.head_dim)
    if config.use_bidirectional_attention:
        require(config, use_bidirectional_attention=False)
    own = {
        "placement": "peri", "embedding_scale": "sqrt_width",
        "windows": windows(config.layer_types, config.sliding_window),
        "attention_logit_cap": config.attn_logit_softcapping,
        "logit_cap": config.final_logit_softcapping,
    }  # fmt: skip
    gate = llama.gate(config.hidden_activation)
    return LanguageModelConfig(**(llama.values(config) | own | gate))


def windows(layer_types: list[str], window: int | None) -> tuple[int | None, ...]:
    """Return the windows of all layers as one turn of them, the shortest that repeats."""
    every = tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    if not any(every):
        return ()
    turns = (every[:size] for size in range(1, len(every) + 1))
    return next(
        turn
        for turn in turns
        if all(each == turn[layer % len(turn)] for layer, each in enumerate(every))
    )


def theirs(config: LanguageModelConfig) -> dict[str, Any]:
    """Return the values of a Gemma2Config."""
    own = [config.window(layer) for layer in range(config.layers)]
    kinds = ["full_attention" if window is None else "sliding_attention" for window in own]
    # Theirs wants a number even where no layer has a window.
    window = next((window for window in own if window is not None), config.max_length)
    made = llama.theirs(config)
    return made | {
        "hidden_activation": made.pop("hidden_act"), "query_pre_attn_scalar": config.head_width,
        "layer_types": kinds, "sliding_window": window,
        "attn_logit_softcapping": config.attention_logit_cap,
        "final_logit_softcapping": config.logit_cap,
    }  # fmt: skip


def one_more(weight: Tensor) -> Tensor:
    """Return a norm's weight as ours."""
    return weight + 1


def one_less(weight: Tensor) -> Tensor:
    """Return a norm's weight as theirs."""
    return weight - 1


def pairs(config: LanguageModelConfig) -> list[Pair]:
    """Return which tensor is which of a Gemma2ForCausalLM."""
    names = {
        "self_attention.before": "input_layernorm",
        "self_attention.branch": "post_attention_layernorm",
        "feed_forward.before": "pre_feedforward_layernorm",
        "feed_forward.branch": "post_feedforward_layernorm",
    }
    made = module("decoder.final_norm", "norm", read=one_more, write=one_less)
    for layer in range(config.layers):
        for name, other in names.items():
            mine, their = f"decoder.layers.{layer}.{name}", f"layers.{layer}.{other}"
            made += module(mine, their, read=one_more, write=one_less)
    return made + llama.shared_pairs(config)
