"""BART and Marian as our encoder-decoder."""

from __future__ import annotations

from typing import Any

from magneto.hf.layout import State, activation, fused, renamed, require, without_prefix
from magneto.models.translation import TranslationConfig, TranslationModel


def convert_bart(config: Any, state: State) -> TranslationModel:
    """BART: Post-LN encoder-decoder, learned positions from row 2 on, a norm on the embeddings."""
    model = _bart_like(config, positions="learned", input_norm="layernorm")
    state = without_prefix(state, "model.")
    ours = _bart_like_state(config, state)
    for stack in ("encoder", "decoder"):
        mine = f"transformer.{stack}"
        table = state[f"{stack}.embed_positions.weight"]
        ours[f"{mine}.position_embedding.table.weight"] = table[2:]  # two rows are never used
        ours |= renamed(state, {f"{stack}.layernorm_embedding": f"{mine}.input_norm"})
    model.load_state_dict(ours)
    return model


def convert_marian(config: Any, state: State) -> TranslationModel:
    """Marian: Post-LN encoder-decoder with sinusoidal positions."""
    require(config, share_encoder_decoder_embeddings=True)
    model = _bart_like(config, positions="sinusoidal", input_norm="none")
    model.load_state_dict(_bart_like_state(config, without_prefix(state, "model.")))
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
            dropout=config.dropout, attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
        )
    )  # fmt: skip


def _bart_like_state(config: Any, state: State) -> State:
    table = state["shared.weight"]
    ours = {
        "embedding.table.weight": table,
        "head.weight": table,
        "logits_bias": state.get("final_logits_bias", table.new_zeros(len(table))).flatten(),
    }
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in range(layers):
            theirs = f"{stack}.layers.{layer}"
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
