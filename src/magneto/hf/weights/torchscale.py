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
from typing import Any, ClassVar

import torch
from torch import Tensor

from magneto.hf.weights.families import fairseq_sinusoids, layers
from magneto.hf.weights.layout import (
    FROM_TWO,
    Fields,
    Names,
    State,
    WeightFormat,
    activation,
    read_fields,
    tensor,
    write_fields,
)
from magneto.language.config import LanguageModelConfig, TextEncoderConfig
from magneto.language.models import LanguageModel, TextEncoder
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel

# Where an argument is not given, torchscale's default is ours.
FIELDS: Fields = {
    "activation": activation("activation_fn", {"gelu": "gelu", "relu": "relu", "swish": "silu"}),
    "norm_eps": "layernorm_eps", "drop_path": "drop_path_rate",
    **{rate: rate for rate in ("dropout", "attention_dropout", "activation_dropout")},
}  # fmt: skip


class Torchscale(WeightFormat):
    """A `Decoder`, an `Encoder` or an `EncoderDecoder` with embeddings, also as fairseq wraps them.

    An encoder's output projection is left behind.
    """

    name, arguments = "torchscale", "torchscale.json"
    placements = ("pre", "post", "sub", "deepnorm")
    refused: ClassVar = {
        "multiway": False, "moe_freq": 0, "xpos_rel_pos": False, "normalize_output": True,
    }  # fmt: skip
    absent = "^logits_bias$|^token_type"

    def __init__(self, model: Any, config: Any, *stacks: str) -> None:
        self.model, self.config, self.stacks = model, config, stacks
        # Says which version wrote it, or is a head that was not asked for.
        left = r"(^|\.)version$|_float_tensor$"
        self.ignored = left + ("|^encoder.output" if len(stacks) == 1 else "")

    def fits(self, state: Mapping[str, Tensor], args: Mapping[str, Any]) -> bool:
        """Whether tensors of these names, with these arguments, are such a model's."""
        if not any(".ffn.fc1." in name or ".self_attn_layer_norm." in name for name in state):
            return False
        return self.stacks == tuple(
            stack for stack in ("encoder", "decoder")
            if any(name.startswith(f"{stack}.layers.") for name in _whole_names(state, args))
        )  # fmt: skip

    def prepared(self, state: State, args: Mapping[str, Any]) -> State:
        """Return tensors whose names begin with the stack, without copies of the embeddings."""
        state = _whole_names(state, args)
        table = state.get(f"{self.stacks[0]}.embed_tokens.weight")
        if table is None:
            raise ValueError(f"no {self.stacks[0]}.embed_tokens.weight: only models with "
                             "embeddings")  # fmt: skip
        copies = ["decoder.output_projection.weight"] if "decoder" in self.stacks else []
        copies += ["decoder.embed_tokens.weight"] if len(self.stacks) == 2 else []
        equal = [name for name in copies if name in state and torch.equal(state[name], table)]
        if len(self.stacks) == 2 and equal != copies:
            raise ValueError(
                "source, target and output have tables of their own; here they share one"
            )
        return {name: tensor for name, tensor in state.items() if name not in equal}

    def read(self, state: State, args: Mapping[str, Any]) -> Any:
        """Return our configuration; a ValueError says what has no counterpart."""
        values = [_stack_values(state, stack, args) for stack in self.stacks]
        layers = [value.pop("layers") for value in values]
        for name, value in values[0].items():
            if values[-1][name] != value:
                raise ValueError(f"encoder and decoder differ in {name}: {value!r}, "
                                 f"{values[-1][name]!r}; here they share it")  # fmt: skip
        own: dict[str, Any] = {"layers": layers[0]}
        if len(layers) == 2:
            own = {"encoder_layers": layers[0], "decoder_layers": layers[1]}
        elif self.stacks == ("decoder",):
            own["tie_embeddings"] = "decoder.output_projection.weight" not in state
        return self.config(
            **own, **read_fields(FIELDS, args), **values[0],
            vocab_size=len(state[f"{self.stacks[0]}.embed_tokens.weight"]),
            embedding_scale="none" if args.get("no_scale_embedding", True) else "sqrt_width",
        )  # fmt: skip

    def mine(self, stack: str) -> str:
        """Return the name of a stack in ours."""
        return f"transformer.{stack}" if len(self.stacks) == 2 else stack

    def names(self, config: Any, state: State | None) -> Names:
        """Return the map; the slot of the outer norms is the placement's."""
        outer = "before" if "before" in config.row.self_attention else "after"
        layer: dict[str, str | tuple[str, ...]] = {
            "self_attention.attention.qkv_proj": tuple(f"self_attn.{part}_proj" for part in "qkv"),
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
            layer[f"cross_attention.attention.{part}"] = f"encoder_attn.{part}"
        names: dict[str, Any] = {"embedding.table": f"{self.stacks[0]}.embed_tokens"}
        if not getattr(config, "tie_embeddings", True):
            names["head"] = "decoder.output_projection"
        for stack in self.stacks:
            mine = self.mine(stack)
            table, biases = f"{mine}.position_embedding", f"{stack}.relative_position"
            names |= {
                f"{table}.table.weight": tensor(f"{stack}.embed_positions.weight", layout=FROM_TWO),
                f"{table}.bias": f"{biases}.relative_attention_bias",
                f"{mine}.input_norm": f"{stack}.layernorm_embedding",
                f"{mine}.final_norm": f"{stack}.layer_norm",
                **layers(f"{mine}.layers", f"{stack}.layers", layer),
            }
        return names

    def computed(self, state: State, config: Any) -> State:
        """Return tables of positions that theirs computes."""
        table = fairseq_sinusoids(config.max_length, config.width, 2)
        return {
            f"{self.mine(stack)}.position_embedding.table.weight": table
            for stack in self.stacks if f"{stack}.embed_positions._float_tensor" in state
        }  # fmt: skip

    def write(self, config: Any) -> dict[str, Any]:
        """Return the arguments of EncoderConfig, DecoderConfig or EncoderDecoderConfig."""
        row = config.row
        args: dict[str, Any] = {
            **write_fields(FIELDS, config), "subln": row.name == "sub",
            "deepnorm": row.name == "deepnorm", "vocab_size": config.vocab_size,
            "no_scale_embedding": config.embedding_scale == "none",
            "layernorm_embedding": config.input_norm == "layernorm",
        }  # fmt: skip
        if config.positions == "t5":
            args |= {"rel_pos_buckets": 32, "max_rel_pos": 128}
        for stack in self.stacks:
            args |= {
                f"{stack}_embed_dim": config.width, f"{stack}_attention_heads": config.heads,
                f"{stack}_ffn_embed_dim": config.ffn_width,
                f"{stack}_layers": config.depth(stack).layers,
                # Said outright: deepnorm=True alone does not take it back from a decoder.
                f"{stack}_normalize_before": "before" in row.self_attention,
            }  # fmt: skip
        if self.stacks == ("encoder",):
            args["no_output_layer"] = True
        elif len(self.stacks) == 2:
            args["share_all_embeddings"] = True
        else:
            args["share_decoder_input_output_embed"] = config.tie_embeddings
        return args

    def finished(self, state: State, config: Any) -> State:
        """Return their tensors with copies of the embeddings; of one stack, without its name."""
        if "decoder" in self.stacks:
            table = state[f"{self.stacks[0]}.embed_tokens.weight"]
            state.setdefault("decoder.embed_tokens.weight", table)
            state.setdefault("decoder.output_projection.weight", table)
        if len(self.stacks) == 2:
            return state
        return {name.removeprefix(f"{self.stacks[0]}."): tensor for name, tensor in state.items()}


def _whole_names(state: Mapping[str, Tensor], args: Mapping[str, Any]) -> State:
    """Return the state with each name beginning with encoder. or decoder."""
    if any(name.startswith(("encoder.", "decoder.")) for name in state):
        return dict(state)
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack}_attention_heads" in args]
    if len(stacks) != 1:
        raise ValueError("the weights do not say whether they are an encoder's or a decoder's: "
                         "give encoder_attention_heads or decoder_attention_heads")  # fmt: skip
    return {f"{stacks[0]}.{name}": tensor for name, tensor in state.items()}


def _stack_values(state: State, stack: str, args: Mapping[str, Any]) -> dict[str, Any]:
    heads = args.get(f"{stack}_attention_heads")
    if not heads:
        raise ValueError(f"the weights do not tell how many heads: give {stack}_attention_heads")
    fc1 = state.get(f"{stack}.layers.0.ffn.fc1.weight")
    if fc1 is None:
        raise ValueError(f"no {stack}.layers.0.ffn.fc1.weight: only plain feed-forward networks")
    positions, length = _positions(state, stack, args)
    numbers = [n.split(".")[2] for n in state if n.startswith(f"{stack}.layers.")]
    return {
        "layers": 1 + max(map(int, numbers)), "width": fc1.shape[1], "ffn_width": fc1.shape[0],
        "heads": int(heads),
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


FORMATS = (
    Torchscale(LanguageModel, LanguageModelConfig, "decoder"),
    Torchscale(TextEncoder, TextEncoderConfig, "encoder"),
    Torchscale(TranslationModel, TranslationConfig, "encoder", "decoder"),
)
