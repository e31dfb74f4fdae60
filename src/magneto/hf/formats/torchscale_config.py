"""torchscale's configuration and ours: read from a state dict and arguments, and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from magneto.hf.formats.layout import State
from magneto.language.config import LanguageModelConfig, TextEncoderConfig
from magneto.translation.config import TranslationConfig

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "silu"}


def stacks_of(state: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Return which stacks a state with whole names has: encoder, decoder or both."""
    return tuple(
        stack
        for stack in ("encoder", "decoder")
        if any(name.startswith(f"{stack}.layers.") for name in state)
    )


def our_config(state: State, args: Mapping[str, Any]) -> Any:
    """Return our configuration.

    Raises:
        ValueError: If heads are not given, or what it computes has no counterpart.
    """
    stacks = stacks_of(state)
    values = [_stack_values(state, stack, args) for stack in stacks]
    layers = {f"{s}_layers": value.pop("layers") for s, value in zip(stacks, values, strict=True)}
    for name, value in values[0].items():
        if values[-1][name] != value:
            raise ValueError(f"encoder and decoder differ in {name}: {value!r}, "
                             f"{values[-1][name]!r}; here they share it")  # fmt: skip
    table = state[f"{stacks[0]}.embed_tokens.weight"]
    shared: dict[str, Any] = {
        "vocab_size": len(table), "norm_eps": args.get("layernorm_eps", 1e-5),
        "embedding_scale": "none" if args.get("no_scale_embedding", True) else "sqrt_width",
        **{f: args.get(f, 0.0) for f in ("dropout", "attention_dropout", "activation_dropout")},
        "drop_path": args.get("drop_path_rate", 0.0), **values[0],
    }  # fmt: skip
    if len(stacks) == 2:
        return TranslationConfig(**shared, **layers)
    if stacks == ("encoder",):
        return TextEncoderConfig(**shared, layers=layers["encoder_layers"])
    output = state.get("decoder.output_projection.weight", table)
    tied = torch.equal(output, table)
    return LanguageModelConfig(**shared, layers=layers["decoder_layers"], tie_embeddings=tied)


def _stack_values(state: State, stack: str, args: Mapping[str, Any]) -> dict[str, Any]:
    heads = args.get(f"{stack}_attention_heads")
    if not heads:
        raise ValueError(f"the weights do not tell how many heads: give {stack}_attention_heads")
    fc1 = state.get(f"{stack}.layers.0.ffn.fc1.weight")
    if fc1 is None:
        raise ValueError(f"no {stack}.layers.0.ffn.fc1.weight: only plain feed-forward networks")
    name = str(args.get("activation_fn", "gelu"))
    if name not in ACTIVATIONS:
        raise ValueError(f"no activation {name!r} here: there are {', '.join(ACTIVATIONS)}")
    positions, length = _positions(state, stack, args)
    numbers = [n.split(".")[2] for n in state if n.startswith(f"{stack}.layers.")]
    return {
        "layers": 1 + max(map(int, numbers)), "width": fc1.shape[1], "ffn_width": fc1.shape[0],
        "heads": int(heads), "activation": ACTIVATIONS[name],
        "placement": _placement(state, stack, args), "positions": positions, "max_length": length,
        "input_norm": "layernorm" if f"{stack}.layernorm_embedding.weight" in state else "none",
    }  # fmt: skip


def _placement(state: State, stack: str, args: Mapping[str, Any]) -> str:
    inner = f"{stack}.layers.0.self_attn.inner_attn_ln.weight" in state
    final = f"{stack}.layer_norm.weight" in state
    deepnorm = bool(args.get("deepnorm", False)) and not inner
    if inner and not final:
        raise ValueError(
            f"the {stack} has norms inside its sublayers and none on top: torchscale built it "
            "Post-LN with Sub-LN's inner norms, which no placement has"
        )
    if deepnorm and final:
        raise ValueError(
            f"the {stack} is Pre-LN with DeepNorm's alpha: torchscale built it so where "
            "normalize_before was left on, and no placement is that"
        )
    if inner:
        return "sub"
    if final:
        return "pre"
    return "deepnorm" if deepnorm else "post"


def _positions(state: State, stack: str, args: Mapping[str, Any]) -> tuple[str, int]:
    """Return the kind of positions, and how many there are."""
    table = state.get(f"{stack}.embed_positions.weight")
    sinusoids = f"{stack}.embed_positions._float_tensor" in state
    biases = [name for name in state if name.endswith("relative_attention_bias.weight")]
    if any(name.startswith(f"{stack}.") for name in biases):
        shape = args.get("rel_pos_buckets", 32), args.get("max_rel_pos", 128)
        if stack == "decoder" or shape != (32, 128) or table is not None or sinusoids:
            raise ValueError(
                "torchscale's relative positions have a counterpart only in an encoder with 32 "
                "buckets up to 128, and no other positions"
            )
        return "t5", 512
    if table is not None:
        return "learned", len(table) - 2
    if sinusoids:
        key = "max_source_positions" if stack == "encoder" else "max_target_positions"
        return "learned", int(args.get(key, 1024))
    return "none", 512


def their_arguments(config: Any, stacks: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of EncoderConfig, DecoderConfig or EncoderDecoderConfig."""
    activations = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    row = config.row
    args: dict[str, Any] = {
        "subln": row.name == "sub", "deepnorm": row.name == "deepnorm",
        "activation_fn": activations.get(config.activation, config.activation),
        "dropout": config.dropout, "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout, "drop_path_rate": config.drop_path,
        "layernorm_eps": config.norm_eps, "no_scale_embedding": config.embedding_scale == "none",
        "layernorm_embedding": config.input_norm == "layernorm", "vocab_size": config.vocab_size,
    }  # fmt: skip
    if config.positions == "t5":
        args |= {"rel_pos_buckets": 32, "max_rel_pos": 128}
    for stack in stacks:
        args |= {
            f"{stack}_embed_dim": config.width, f"{stack}_attention_heads": config.heads,
            f"{stack}_ffn_embed_dim": config.ffn_width,
            f"{stack}_layers": config.depth(stack).layers,
            # Said outright: deepnorm=True alone does not take it back from a decoder.
            f"{stack}_normalize_before": "before" in row.self_attention,
        }  # fmt: skip
    if stacks == ("encoder",):
        args["no_output_layer"] = True
    elif len(stacks) == 2:
        args["share_all_embeddings"] = True
    else:
        args["share_decoder_input_output_embed"] = config.tie_embeddings
    return args
