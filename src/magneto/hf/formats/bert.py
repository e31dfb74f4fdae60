"""transformers' BERT as our text encoder, masked language model or classifier, and back."""

from __future__ import annotations

from typing import Any

from magneto.hf.formats.layout import Pair, activation, module, require, their_activation
from magneto.language.config import (
    MaskedLanguageModelConfig,
    TextClassifierConfig,
    TextEncoderConfig,
)


def ours(config: Any) -> TextEncoderConfig:
    """Return our configuration: Post-LN, learned positions, a norm on the embeddings.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    return TextEncoderConfig(**_values(config))


def ours_masked(config: Any) -> MaskedLanguageModelConfig:
    """Return our configuration with the head that guesses tokens, whose activation is GELU."""
    require(config, hidden_act="gelu")
    return MaskedLanguageModelConfig(**_values(config), tie_embeddings=config.tie_word_embeddings)


def ours_classifier(config: Any) -> TextClassifierConfig:
    """Return our configuration with the head that reads the first feature."""
    rate = getattr(config, "classifier_dropout", None)
    rate = config.hidden_dropout_prob if rate is None else rate
    return TextClassifierConfig(**_values(config), classes=config.num_labels, head_dropout=rate)


def _values(config: Any) -> dict[str, Any]:
    require(config, position_embedding_type="absolute", is_decoder=False)
    return {
        "width": config.hidden_size, "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads, "ffn_width": config.intermediate_size,
        "placement": "post", "activation": activation(config.hidden_act),
        "norm_eps": config.layer_norm_eps, "positions": "learned",
        "max_length": config.max_position_embeddings, "input_norm": "layernorm",
        "vocab_size": config.vocab_size, "token_types": config.type_vocab_size,
        "embedding_scale": "none", "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
    }  # fmt: skip


def theirs(config: TextEncoderConfig) -> dict[str, Any]:
    """Return the values of a BertConfig."""
    values = {
        "hidden_size": config.width, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "intermediate_size": config.ffn_width,
        "hidden_act": their_activation(config.activation), "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_length, "vocab_size": config.vocab_size,
        "type_vocab_size": config.token_types, "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }  # fmt: skip
    if isinstance(config, MaskedLanguageModelConfig):
        values["tie_word_embeddings"] = config.tie_embeddings
    if isinstance(config, TextClassifierConfig):
        values |= {"num_labels": config.classes, "classifier_dropout": config.head_dropout}
    return values


def pairs(config: TextEncoderConfig) -> list[Pair]:
    """Return which tensor of a `TextEncoder` is which of a BertModel."""
    made = [
        *module("embedding.table", "embeddings.word_embeddings"),
        *module("encoder.position_embedding.table", "embeddings.position_embeddings"),
        *module("token_type", "embeddings.token_type_embeddings"),
        *module("encoder.input_norm", "embeddings.LayerNorm"),
    ]
    for layer in range(config.layers):
        mine, their = f"encoder.layers.{layer}", f"encoder.layer.{layer}"
        parts = [f"{their}.attention.self.{part}" for part in ("query", "key", "value")]
        made += module(f"{mine}.self_attention.attention.qkv_proj", *parts)
        names = {
            "self_attention.attention.out_proj": "attention.output.dense",
            "self_attention.after": "attention.output.LayerNorm",
            "feed_forward.mlp.fc1": "intermediate.dense",
            "feed_forward.mlp.fc2": "output.dense",
            "feed_forward.after": "output.LayerNorm",
        }
        for name, other in names.items():
            made += module(f"{mine}.{name}", f"{their}.{other}")
    return made


def masked_pairs(config: MaskedLanguageModelConfig) -> list[Pair]:
    """Return which tensor of a `MaskedLanguageModel` is which of a BertForMaskedLM."""
    made = prefixed("text_encoder.", pairs(config))
    made += module("head.dense", "cls.predictions.transform.dense")
    made += module("head.norm", "cls.predictions.transform.LayerNorm")
    made.append(Pair("head.vocabulary.bias", ("cls.predictions.decoder.bias",)))
    if not config.tie_embeddings:
        made.append(Pair("head.vocabulary.weight", ("cls.predictions.decoder.weight",)))
    return made


def classifier_pairs(config: TextClassifierConfig) -> list[Pair]:
    """Return which tensor of a `TextClassifier` is which of a BertForSequenceClassification."""
    made = prefixed("text_encoder.", pairs(config))
    return [*made, *module("head.dense", "pooler.dense"), *module("head.answer", "classifier")]


def prefixed(prefix: str, made: list[Pair]) -> list[Pair]:
    """Return pairs whose names of ours begin with a prefix."""
    return [Pair(prefix + pair.ours, pair.theirs, pair.read, pair.write) for pair in made]
