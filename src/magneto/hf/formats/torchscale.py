"""torchscale's state dicts as our models, and back: Sub-LN, DeepNorm, Pre-LN, Post-LN.

What a state dict does not tell (heads, DeepNorm, how embeddings are scaled) comes from the
arguments of torchscale's configuration. Its known deviations are met here so:

- its initialisation (biases scaled with the weights, another gain for a DeepNorm encoder beside a
  decoder) is in the weights, which are taken as they are;
- a DeepNorm decoder that was built Pre-LN, and a Sub-LN decoder that was built Post-LN, compute
  what no placement here does: they are refused, and the message says so;
- so are relative positions of a decoder: half of its buckets were never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from magneto.hf.formats.kosmos2 import fairseq_sinusoids
from magneto.hf.formats.layout import (
    Pair,
    State,
    add_two,
    check_placement,
    check_same,
    fill,
    module,
    read_state,
    skip_two,
    write_state,
)
from magneto.hf.formats.torchscale_config import our_config, stacks_of, their_arguments
from magneto.language.models import LanguageModel, TextEncoder
from magneto.nn.config import TransformerConfig
from magneto.translation.model import TranslationModel

UNKNOWN = {"multiway": False, "moe_freq": 0, "xpos_rel_pos": False, "normalize_output": True}
# Says which version wrote it, or is a head that was not asked for.
IGNORED = r"(^|\.)version$|_float_tensor$"


def load_torchscale(state: Mapping[str, Tensor], args: Mapping[str, Any]) -> nn.Module:
    """Return a torchscale model as one of ours, in evaluation mode.

    Args:
        state: Of a `Decoder`, an `Encoder` or an `EncoderDecoder` with embeddings, also as fairseq
            wraps them. An encoder's output projection is left behind.
        args: Of its configuration; `encoder_attention_heads` or `decoder_attention_heads` must be
            there, for the rest torchscale's defaults hold.

    Returns:
        A `LanguageModel`, a `TextEncoder` or a `TranslationModel`.

    Raises:
        ValueError: If heads are not given, or what it computes has no counterpart.
    """
    for name, value in UNKNOWN.items():
        if args.get(name, value) != value:
            raise ValueError(f"torchscale with {name}={args[name]!r} has no counterpart here")
    state = _whole_names(state, args)
    stacks = stacks_of(state)
    tied = _untie(state, stacks)
    config = our_config(state, args)
    kind, pairs = _model(config, stacks, tied)
    made = read_state(pairs, state, IGNORED + ("|^encoder.output" if len(stacks) == 1 else ""))
    for stack in stacks:
        if f"{stack}.embed_positions._float_tensor" in state:
            table = fairseq_sinusoids(config.max_length, config.width, 2)
            made[f"{_mine(stack, stacks)}.position_embedding.table.weight"] = table
    absent = "^logits_bias$|^token_type"
    return fill(kind, {k: v.detach().clone().float() for k, v in made.items()}, absent).eval()


def to_torchscale(model: nn.Module) -> tuple[State, dict[str, Any]]:
    """Return a model of ours as torchscale's state dict and the arguments of its configuration.

    Raises:
        ValueError: If torchscale has no counterpart; the first difference is named.
    """
    kinds: dict[type, tuple[str, ...]] = {
        LanguageModel: ("decoder",), TextEncoder: ("encoder",),
        TranslationModel: ("encoder", "decoder"),
    }  # fmt: skip
    if type(model) not in kinds:
        raise ValueError(f"torchscale has no counterpart of a {type(model).__name__}")
    config: Any = model.config
    stacks = kinds[type(model)]
    check_placement(config, ["pre", "post", "sub", "deepnorm"], "torchscale")
    args = their_arguments(config, stacks)
    own = model.state_dict()
    if "logits_bias" in own and own.pop("logits_bias").any():
        raise ValueError("torchscale has no bias of the logits, and this model has one")
    if "token_type.weight" in own and own.pop("token_type.weight").any():
        raise ValueError("torchscale has no token types, and this model has them")
    tied = getattr(config, "tie_embeddings", True)
    state = write_state(_model(config, stacks, tied)[1], own)
    table = state[f"{stacks[0]}.embed_tokens.weight"]
    if stacks[-1] == "decoder":
        state.setdefault("decoder.embed_tokens.weight", table)
        state.setdefault("decoder.output_projection.weight", table)
    check_same(config, our_config(state, args), "torchscale")
    if len(stacks) == 1:
        state = {name.removeprefix(f"{stacks[0]}."): tensor for name, tensor in state.items()}
    return state, args


def _whole_names(state: Mapping[str, Tensor], args: Mapping[str, Any]) -> State:
    """Return the state with each name beginning with encoder. or decoder."""
    if any(name.startswith(("encoder.", "decoder.")) for name in state):
        return dict(state)
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack}_attention_heads" in args]
    if len(stacks) != 1:
        raise ValueError("the weights do not say whether they are an encoder's or a decoder's: "
                         "give encoder_attention_heads or decoder_attention_heads")  # fmt: skip
    return {f"{stacks[0]}.{name}": tensor for name, tensor in state.items()}


def _mine(stack: str, stacks: tuple[str, ...]) -> str:
    return f"transformer.{stack}" if len(stacks) == 2 else stack


def _untie(state: State, stacks: tuple[str, ...]) -> bool:
    """Drop copies of the embedding table; return whether the output projection was one."""
    if not stacks:
        raise ValueError("no layers.0 among the weights: this is no torchscale model")
    table = state.get(f"{stacks[0]}.embed_tokens.weight")
    if table is None:
        raise ValueError(f"no {stacks[0]}.embed_tokens.weight: only models with embeddings")
    copies = ["decoder.output_projection.weight"] if "decoder" in stacks else []
    copies += ["decoder.embed_tokens.weight"] if len(stacks) == 2 else []
    equal = [name in state and torch.equal(state[name], table) for name in copies]
    if len(stacks) == 2 and not all(equal):
        raise ValueError("source, target and output have tables of their own; here they share one")
    for name, is_copy in zip(copies, equal, strict=True):
        if is_copy:
            del state[name]
    return all(equal)


def _model(config: Any, stacks: tuple[str, ...], tied: bool) -> tuple[nn.Module, list[Pair]]:
    """Build ours, and say which tensor is which."""
    pairs = module("embedding.table", f"{stacks[0]}.embed_tokens")
    for stack in stacks:
        pairs += _stack_pairs(config, stack, _mine(stack, stacks))
    if len(stacks) == 2:
        return TranslationModel(config), pairs
    if stacks == ("encoder",):
        return TextEncoder(config), pairs
    if not tied:
        pairs += module("head", "decoder.output_projection")
    return LanguageModel(config), pairs


def _stack_pairs(config: TransformerConfig, stack: str, mine: str) -> list[Pair]:
    """Return the pairs of one stack; the slot of the outer norms is the placement's."""
    outer = "before" if "before" in config.row.self_attention else "after"
    pairs = [
        Pair(f"{mine}.position_embedding.table.weight", (f"{stack}.embed_positions.weight",),
             skip_two, add_two),
        Pair(f"{mine}.position_embedding.bias.weight",
             (f"{stack}.relative_position.relative_attention_bias.weight",)),
        *module(f"{mine}.input_norm", f"{stack}.layernorm_embedding"),
        *module(f"{mine}.final_norm", f"{stack}.layer_norm"),
    ]  # fmt: skip
    names = {
        "self_attention.attention.inside": "self_attn.inner_attn_ln",
        "self_attention.attention.out_proj": "self_attn.out_proj",
        f"self_attention.{outer}": "self_attn_layer_norm",
        f"cross_attention.{outer}": "encoder_attn_layer_norm",
        "feed_forward.mlp.fc1": "ffn.fc1",
        "feed_forward.mlp.inside": "ffn.ffn_layernorm",
        "feed_forward.mlp.fc2": "ffn.fc2",
        f"feed_forward.{outer}": "final_layer_norm",
    }
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        names[f"cross_attention.attention.{part}"] = f"encoder_attn.{part}"
    depth = config.depth("encoder" if stack == "encoder" else "decoder")
    for layer in range(depth.layers):
        our, their = f"{mine}.layers.{layer}", f"{stack}.layers.{layer}"
        parts = [f"{their}.self_attn.{part}_proj" for part in "qkv"]
        pairs += module(f"{our}.self_attention.attention.qkv_proj", *parts)
        for name, other in names.items():
            pairs += module(f"{our}.{name}", f"{their}.{other}")
    return pairs
