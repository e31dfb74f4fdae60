"""transformers' BART and Marian as our encoder-decoder, and back.

Post-LN, both stacks alike; BART has learned positions and a norm on the embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magneto.hf.weights.layout import (
    Format,
    Names,
    Pair,
    activation,
    add_two,
    as_row,
    first,
    require,
    scaled,
    skip_two,
)
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel

LAYER: Names = {
    "self_attention.attention.qkv_proj": (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    ),
    "self_attention.attention.out_proj": "self_attn.out_proj",
    "self_attention.after": "self_attn_layer_norm",
    "feed_forward.mlp.fc1": "fc1",
    "feed_forward.mlp.fc2": "fc2",
    "feed_forward.after": "final_layer_norm",
}  # fmt: skip
CROSS: Names = {
    "cross_attention.after": "encoder_attn_layer_norm",
    "cross_attention.attention.q_proj": "encoder_attn.q_proj",
    "cross_attention.attention.k_proj": "encoder_attn.k_proj",
    "cross_attention.attention.v_proj": "encoder_attn.v_proj",
    "cross_attention.attention.out_proj": "encoder_attn.out_proj",
}
BIAS = Pair("logits_bias", ("final_logits_bias",), first, as_row)


def check_stacks(config: Any) -> dict[str, Any]:
    """Return no more values; raise ValueError where the stacks differ."""
    require(config, encoder_attention_heads=config.decoder_attention_heads,
            encoder_ffn_dim=config.decoder_ffn_dim)  # fmt: skip
    return {}


def positions(config: TranslationConfig) -> list[Pair]:
    """Return BART's tensors that are no modules'."""
    tables = [
        Pair(
            f"transformer.{stack}.position_embedding.table.weight",
            (f"{stack}.embed_positions.weight",), skip_two, add_two,
        )
        for stack in ("encoder", "decoder")
    ]  # fmt: skip
    return [BIAS, *tables]


BART = Format(
    "bart", "BartConfig", ("BartForConditionalGeneration", "BartModel"), TranslationModel,
    TranslationConfig,
    fields={
        "width": "d_model", "encoder_layers": "encoder_layers", "decoder_layers": "decoder_layers",
        "heads": "decoder_attention_heads", "ffn_width": "decoder_ffn_dim",
        "activation": activation("activation_function"), "max_length": "max_position_embeddings",
        "vocab_size": "vocab_size", "embedding_scale": scaled("scale_embedding"),
        "dropout": "dropout", "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
    },
    fixed={"placement": "post", "positions": "learned", "input_norm": "layernorm"},
    required={"tie_word_embeddings": True, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    read=check_stacks,
    write=lambda config: {
        "encoder_attention_heads": config.heads, "encoder_ffn_dim": config.ffn_width,
    },
    modules={
        "embedding.table": "shared",
        "transformer.encoder.input_norm": "encoder.layernorm_embedding",
        "transformer.decoder.input_norm": "decoder.layernorm_embedding",
    },
    layers=(
        ("transformer.encoder.layers", "encoder.layers", LAYER),
        ("transformer.decoder.layers", "decoder.layers", {**LAYER, **CROSS}),
    ),
    tensors=positions,
    ignored=r"^lm_head|embed_tokens",
)  # fmt: skip
FORMATS = (
    BART,
    replace(
        BART, name="marian", config="MarianConfig", classes=("MarianMTModel", "MarianModel"),
        fixed={"placement": "post", "positions": "sinusoidal", "input_norm": "none"},
        required={**BART.required, "share_encoder_decoder_embeddings": True},
        tensors=lambda config: [BIAS],
        ignored=r"^lm_head|embed_tokens|embed_positions", absent="embed_positions",
    ),
)  # fmt: skip
