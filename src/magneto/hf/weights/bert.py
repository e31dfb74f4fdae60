"""transformers' BERT as our text encoder, masked language model or classifier, and back.

Post-LN, learned positions, a norm on the embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magneto.hf.weights.layout import Format, Names, activation
from magneto.language.config import (
    MaskedLanguageModelConfig,
    TextClassifierConfig,
    TextEncoderConfig,
)
from magneto.language.models import MaskedLanguageModel, TextClassifier, TextEncoder

LAYER: Names = {
    "self_attention.attention.qkv_proj": (
        "attention.self.query", "attention.self.key", "attention.self.value",
    ),
    "self_attention.attention.out_proj": "attention.output.dense",
    "self_attention.after": "attention.output.LayerNorm",
    "feed_forward.mlp.fc1": "intermediate.dense",
    "feed_forward.mlp.fc2": "output.dense",
    "feed_forward.after": "output.LayerNorm",
}  # fmt: skip


def names(prefix: str = "") -> dict[str, str]:
    """Return the modules outside the layers."""
    return {
        f"{prefix}embedding.table": "embeddings.word_embeddings",
        f"{prefix}encoder.position_embedding.table": "embeddings.position_embeddings",
        f"{prefix}token_type": "embeddings.token_type_embeddings",
        f"{prefix}encoder.input_norm": "embeddings.LayerNorm",
    }


def classifier_dropout(config: Any) -> dict[str, Any]:
    """Return the rate before the last matrix; by default that of the layers."""
    rate = getattr(config, "classifier_dropout", None)
    return {"head_dropout": config.hidden_dropout_prob if rate is None else rate}


ENCODER = Format(
    "bert", "BertConfig", ("BertModel",), TextEncoder, TextEncoderConfig,
    fields={
        "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
        "ffn_width": "intermediate_size", "activation": activation("hidden_act"),
        "norm_eps": "layer_norm_eps", "max_length": "max_position_embeddings",
        "vocab_size": "vocab_size", "token_types": "type_vocab_size",
        "dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob",
    },
    fixed={
        "placement": "post", "positions": "learned", "input_norm": "layernorm",
        "embedding_scale": "none",
    },
    required={"position_embedding_type": "absolute", "is_decoder": False},
    modules=names(),
    layers=(("encoder.layers", "encoder.layer", LAYER),),
    prefix="bert.",
    ignored=r"^pooler|^cls\.|^classifier|^qa_outputs|position_ids$",
    options={"add_pooling_layer": False},
)  # fmt: skip
HEADED = replace(
    ENCODER, layers=(("text_encoder.encoder.layers", "encoder.layer", LAYER),), options={}
)
FORMATS = (
    ENCODER,
    replace(
        HEADED, classes=("BertForMaskedLM", "BertForPreTraining"), model=MaskedLanguageModel,
        shape=MaskedLanguageModelConfig,
        fields={**ENCODER.fields, "tie_embeddings": "tie_word_embeddings"},
        required={**ENCODER.required, "hidden_act": "gelu"},  # the head's, too
        modules={
            **names("text_encoder."), "head.dense": "cls.predictions.transform.dense",
            "head.norm": "cls.predictions.transform.LayerNorm",
            "head.vocabulary": "cls.predictions.decoder",
        },
        ignored=r"^pooler|^cls\.predictions\.bias|^cls\.seq_relationship|position_ids$",
        absent=r"^cls\.predictions\.bias$",
    ),
    replace(
        HEADED, classes=("BertForSequenceClassification",), model=TextClassifier,
        shape=TextClassifierConfig,
        fields={**ENCODER.fields, "classes": "num_labels", "head_dropout": "classifier_dropout"},
        read=classifier_dropout,
        modules={
            **names("text_encoder."), "head.dense": "pooler.dense", "head.answer": "classifier",
        },
        ignored="position_ids$",
    ),
)  # fmt: skip
