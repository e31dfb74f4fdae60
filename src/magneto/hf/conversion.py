"""Other people's weights into our modules: GPT-2, BERT, BART, Marian.

Only names and layouts change; outputs are equal to rounding. What has no counterpart here is an
error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from magneto.hf.formats.bart import convert_bart, convert_marian
from magneto.hf.layout import State, activation, fused, renamed, require, without_prefix
from magneto.models.language import LanguageModel, LanguageModelConfig
from magneto.models.text_encoder import TextEncoder, TextEncoderConfig


def load(source: str | Path | nn.Module) -> nn.Module:
    """Load a transformers model as one of ours, in evaluation mode.

    Args:
        source: A directory, a name on the hub, or a transformers model: GPT-2, BERT, BART, Marian.

    Returns:
        A `LanguageModel`, a `TextEncoder` or a `TranslationModel`. Heads of other kinds, BERT's
        pooler among them, are left behind. Dropout rates come along.

    Raises:
        ValueError: If there is no counterpart for the architecture or one of its options.
    """
    config = _config(source)
    kind = config.model_type
    if kind not in CONVERTERS:
        known = ", ".join(CONVERTERS)
        raise ValueError(f"cannot convert a {kind!r} model, only {known}")
    model_class, convert = CONVERTERS[kind]
    if isinstance(source, nn.Module):
        state = source.state_dict()
    else:
        import transformers

        state = getattr(transformers, model_class).from_pretrained(source).state_dict()
    return convert(config, {name: tensor.detach().clone() for name, tensor in state.items()}).eval()


def _config(source: str | Path | nn.Module) -> Any:
    if isinstance(source, nn.TransformerEncoder):
        raise ValueError("this is torch's own encoder: use magneto.hf.from_torch")
    if isinstance(source, nn.Module):
        if not hasattr(source, "config"):
            raise ValueError(f"{type(source).__name__} is no model of transformers: no config")
        return source.config
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"no Hugging Face model in {source}") from error


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
            embedding_scale="none", dropout=config.resid_pdrop, attention_dropout=config.attn_pdrop,
        )
    )  # fmt: skip
    state = without_prefix(state, "transformer.")
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
            embedding_scale="none", dropout=config.hidden_dropout_prob,
            attention_dropout=config.attention_probs_dropout_prob,
        )
    )  # fmt: skip
    state = without_prefix(state, "bert.")
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


CONVERTERS: dict[str, tuple[str, Callable[[Any, State], nn.Module]]] = {
    "gpt2": ("GPT2LMHeadModel", convert_gpt2),
    "bert": ("BertModel", convert_bert),
    "bart": ("BartForConditionalGeneration", convert_bart),
    "marian": ("MarianMTModel", convert_marian),
}
