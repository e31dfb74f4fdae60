"""Other people's weights into our modules: GPT-2, BERT, BART, Marian, and torch's own encoder.

Only names and layouts change; outputs are equal to rounding. What has no counterpart here is an
error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magneto.models.language import LanguageModel, LanguageModelConfig
from magneto.models.text_encoder import TextEncoder, TextEncoderConfig
from magneto.models.translation import TranslationConfig, TranslationModel
from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Encoder

State = dict[str, Tensor]
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def load(source: str | Path | nn.Module) -> nn.Module:
    """Load a transformers model as one of ours, in evaluation mode.

    Args:
        source: A directory, a name on the hub, or a transformers model: GPT-2, BERT, BART, Marian.

    Returns:
        A `LanguageModel`, a `TextEncoder` or a `TranslationModel`.

    Raises:
        ValueError: If there is no counterpart for the architecture or one of its options.
    """
    config = _config(source)
    kind = config.model_type
    if kind not in CONVERTERS:
        known = ", ".join(CONVERTERS)
        raise ValueError(f"cannot convert a {kind!r} model: there is no placement row for it "
                         f"(there are {known})")  # fmt: skip
    model_class, convert = CONVERTERS[kind]
    if isinstance(source, nn.Module):
        state = source.state_dict()
    else:
        import transformers

        state = getattr(transformers, model_class).from_pretrained(source).state_dict()
    return convert(config, {name: tensor.detach().clone() for name, tensor in state.items()}).eval()


def _config(source: str | Path | nn.Module) -> Any:
    if isinstance(source, nn.Module):
        return source.config
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"no Hugging Face model in {source}") from error


def activation(name: str) -> Any:
    """Return our name of an activation.

    Raises:
        ValueError: If we have none.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"no activation {name!r} here: there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def require(config: Any, **wanted: Any) -> None:
    """Raise ValueError if an option of a transformers configuration is not as we have it."""
    for name, value in wanted.items():
        found = getattr(config, name, value)
        if found != value:
            raise ValueError(f"{config.model_type} with {name}={found!r} has no counterpart here "
                             f"(only {value!r})")  # fmt: skip


def convert_gpt2(config: Any, state: State) -> LanguageModel:
    """GPT-2: Pre-LN, learned positions, a fused qkv stored transposed."""
    require(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False,
            add_cross_attention=False, reorder_and_upcast_attn=False)  # fmt: skip
    model = LanguageModel(
        LanguageModelConfig(
            width=config.n_embd, layers=config.n_layer, heads=config.n_head,
            ffn_width=config.n_inner or 4 * config.n_embd, placement="pre",
            activation=activation(config.activation_function),
            norm_eps=config.layer_norm_epsilon, positions="learned", max_length=config.n_positions,
            vocab_size=config.vocab_size, tie_embeddings=config.tie_word_embeddings,
            embedding_scale="none",
        )
    )  # fmt: skip
    state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    ours = {
        "embedding.table.weight": state["wte.weight"],
        "decoder.position_embedding.table.weight": state["wpe.weight"],
        "head.weight": state.get("lm_head.weight", state["wte.weight"]),
        **renamed(state, {"ln_f": "decoder.final_norm"}),
    }
    for layer in range(config.n_layer):
        theirs, mine = f"h.{layer}", f"decoder.layers.{layer}"
        names = {
            f"{theirs}.ln_1": f"{mine}.self_attention.before",
            f"{theirs}.attn.c_attn": f"{mine}.self_attention.attention.qkv_proj",
            f"{theirs}.attn.c_proj": f"{mine}.self_attention.attention.out_proj",
            f"{theirs}.ln_2": f"{mine}.feed_forward.before",
            f"{theirs}.mlp.c_fc": f"{mine}.feed_forward.mlp.fc1",
            f"{theirs}.mlp.c_proj": f"{mine}.feed_forward.mlp.fc2",
        }
        for name, tensor in renamed(state, names).items():
            ours[name] = tensor.t() if tensor.ndim == 2 else tensor  # Conv1D keeps (in, out)
    model.load_state_dict(ours)
    return model


def convert_bert(config: Any, state: State) -> TextEncoder:
    """BERT: Post-LN, learned positions, two token types, a norm on the embeddings. No pooler."""
    require(config, position_embedding_type="absolute", is_decoder=False)
    model = TextEncoder(
        TextEncoderConfig(
            width=config.hidden_size, layers=config.num_hidden_layers,
            heads=config.num_attention_heads, ffn_width=config.intermediate_size, placement="post",
            activation=activation(config.hidden_act), norm_eps=config.layer_norm_eps,
            positions="learned", max_length=config.max_position_embeddings, input_norm="layernorm",
            vocab_size=config.vocab_size, token_types=config.type_vocab_size,
            embedding_scale="none",
        )
    )  # fmt: skip
    state = {name.removeprefix("bert."): tensor for name, tensor in state.items()}
    first = {
        "embeddings.word_embeddings": "embedding.table",
        "embeddings.position_embeddings": "encoder.position_embedding.table",
        "embeddings.token_type_embeddings": "token_type",
        "embeddings.LayerNorm": "encoder.input_norm",
    }
    ours = renamed(state, first)
    for layer in range(config.num_hidden_layers):
        theirs, mine = f"encoder.layer.{layer}", f"encoder.layers.{layer}"
        parts = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        ours |= fused(state, parts, f"{mine}.self_attention.attention.qkv_proj")
        names = {
            f"{theirs}.attention.output.dense": f"{mine}.self_attention.attention.out_proj",
            f"{theirs}.attention.output.LayerNorm": f"{mine}.self_attention.after",
            f"{theirs}.intermediate.dense": f"{mine}.feed_forward.mlp.fc1",
            f"{theirs}.output.dense": f"{mine}.feed_forward.mlp.fc2",
            f"{theirs}.output.LayerNorm": f"{mine}.feed_forward.after",
        }
        ours |= renamed(state, names)
    model.load_state_dict(ours)
    return model


def convert_bart(config: Any, state: State) -> TranslationModel:
    """BART: Post-LN encoder-decoder, learned positions from row 2 on, a norm on the embeddings."""
    shared = _bart_like(config, positions="learned", input_norm="layernorm")
    ours = _bart_like_state(config, state)
    for stack in ("encoder", "decoder"):
        theirs, mine = f"model.{stack}", f"transformer.{stack}"
        # BART's first two rows are never used.
        ours[f"{mine}.position_embedding.table.weight"] = state[f"{theirs}.embed_positions.weight"][
            2:
        ]
        ours |= renamed(state, {f"{theirs}.layernorm_embedding": f"{mine}.input_norm"})
    shared.load_state_dict(ours)
    return shared


def convert_marian(config: Any, state: State) -> TranslationModel:
    """Marian: Post-LN encoder-decoder with sinusoidal positions."""
    require(config, share_encoder_decoder_embeddings=True)
    model = _bart_like(config, positions="sinusoidal", input_norm="none")
    model.load_state_dict(_bart_like_state(config, state))
    return model


def _bart_like(config: Any, positions: Any, input_norm: Any) -> TranslationModel:
    require(config, encoder_attention_heads=config.decoder_attention_heads,
            encoder_ffn_dim=config.decoder_ffn_dim, tie_word_embeddings=True)  # fmt: skip
    return TranslationModel(
        TranslationConfig(
            width=config.d_model, encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers, heads=config.decoder_attention_heads,
            ffn_width=config.decoder_ffn_dim, placement="post",
            activation=activation(config.activation_function), positions=positions,
            max_length=config.max_position_embeddings, input_norm=input_norm,
            vocab_size=config.vocab_size,
            embedding_scale="sqrt_width" if config.scale_embedding else "none",
        )
    )  # fmt: skip


def _bart_like_state(config: Any, state: State) -> State:
    table = state["model.shared.weight"]
    ours = {
        "embedding.table.weight": table,
        "head.weight": table,
        "logits_bias": state["final_logits_bias"].flatten(),
    }
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in range(layers):
            theirs = f"model.{stack}.layers.{layer}"
            mine = f"transformer.{stack}.layers.{layer}"
            parts = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
            ours |= fused(state, parts, f"{mine}.self_attention.attention.qkv_proj")
            names = {
                f"{theirs}.self_attn.out_proj": f"{mine}.self_attention.attention.out_proj",
                f"{theirs}.self_attn_layer_norm": f"{mine}.self_attention.after",
                f"{theirs}.fc1": f"{mine}.feed_forward.mlp.fc1",
                f"{theirs}.fc2": f"{mine}.feed_forward.mlp.fc2",
                f"{theirs}.final_layer_norm": f"{mine}.feed_forward.after",
            }
            if stack == "decoder":
                cross = f"{mine}.cross_attention"
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    names[f"{theirs}.encoder_attn.{part}"] = f"{cross}.attention.{part}"
                names[f"{theirs}.encoder_attn_layer_norm"] = f"{cross}.after"
            ours |= renamed(state, names)
    return ours


def from_torch(encoder: nn.TransformerEncoder) -> Encoder:
    """Return torch's own encoder as one of ours, in evaluation mode.

    Raises:
        ValueError: If its activation has no counterpart.
    """
    first: Any = encoder.layers[0]
    functions = {torch.nn.functional.relu: "relu", torch.nn.functional.gelu: "gelu"}
    if first.activation not in functions:
        raise ValueError(f"no counterpart for the activation {first.activation}")
    before = first.norm_first
    if before != (encoder.norm is not None):
        raise ValueError("norm_first needs a norm on top of the stack, and Post-LN has none")
    config = TransformerConfig(
        width=first.linear1.in_features, layers=len(encoder.layers),
        heads=first.self_attn.num_heads, ffn_width=first.linear1.out_features, placement="pre" if before else "post",
        activation=functions[first.activation],  # type: ignore[arg-type]
        norm_eps=first.norm1.eps,
        bias=first.linear1.bias is not None,
    )  # fmt: skip
    model = Encoder(config)
    state = encoder.state_dict()
    ours = renamed(state, {"norm": "final_norm"})
    slot = "before" if before else "after"
    for layer in range(len(encoder.layers)):
        theirs, mine = f"layers.{layer}", f"layers.{layer}"
        qkv = f"{mine}.self_attention.attention.qkv_proj"
        for kind in ("weight", "bias"):
            if f"{theirs}.self_attn.in_proj_{kind}" in state:
                ours[f"{qkv}.{kind}"] = state[f"{theirs}.self_attn.in_proj_{kind}"]
        names = {
            f"{theirs}.self_attn.out_proj": f"{mine}.self_attention.attention.out_proj",
            f"{theirs}.norm1": f"{mine}.self_attention.{slot}",
            f"{theirs}.linear1": f"{mine}.feed_forward.mlp.fc1",
            f"{theirs}.linear2": f"{mine}.feed_forward.mlp.fc2",
            f"{theirs}.norm2": f"{mine}.feed_forward.{slot}",
        }
        ours |= renamed(state, names)
    model.load_state_dict(ours)
    return model.eval()


def renamed(state: Mapping[str, Tensor], names: Mapping[str, str]) -> State:
    """Return weight and bias of each named module, under its new name."""
    return {
        f"{new}.{kind}": state[f"{old}.{kind}"]
        for old, new in names.items()
        for kind in ("weight", "bias")
        if f"{old}.{kind}" in state
    }


def fused(state: Mapping[str, Tensor], parts: list[str], name: str) -> State:
    """Return query, key and value as one projection."""
    return {
        f"{name}.{kind}": torch.cat([state[f"{part}.{kind}"] for part in parts])
        for kind in ("weight", "bias")
        if f"{parts[0]}.{kind}" in state
    }


CONVERTERS: dict[str, tuple[str, Callable[[Any, State], nn.Module]]] = {
    "gpt2": ("GPT2LMHeadModel", convert_gpt2),
    "bert": ("BertModel", convert_bert),
    "bart": ("BartForConditionalGeneration", convert_bart),
    "marian": ("MarianMTModel", convert_marian),
}
