"""Formats of the supported models of the library transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from magneto.hf.layout import (
    FROM_TWO,
    ROW,
    TOKEN,
    Field,
    Fields,
    Layout,
    ModelFormat,
    Names,
    State,
    TheirTensors,
    activation,
    choice,
    require,
    tensor,
)
from magneto.language.config import (
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
    TextEncoderConfig,
)
from magneto.language.models import (
    LanguageModel,
    MaskedLanguageModel,
    TextClassifier,
    TextEncoder,
)
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel
from magneto.vision.config import ImageClassifierConfig
from magneto.vision.models import ImageClassifier

SIZES = {
    "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "ffn_width": "intermediate_size",
}  # fmt: skip
WORDS = {
    "max_length": "max_position_embeddings", "vocab_size": "vocab_size",
    "tie_embeddings": "tie_word_embeddings",
}  # fmt: skip
DROPOUTS = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
BRANCH_DROPOUTS = {name: name for name in ("dropout", "attention_dropout", "activation_dropout")}
SCALED = {"embedding_scale": choice("scale_embedding", "sqrt_width", "none")}
UNSCALED = {"embedding_scale": "none"}
ATTENTION, MLP = "self_attention.attention", "feed_forward.mlp"


def layers(ours: str, theirs: str, names: Mapping[str, str | tuple[str, ...]]) -> Names:
    """Prefix tensor names with the stack's name and `*`, which stands for the layer's number."""
    made: dict[str, str | tuple[str, ...]] = {}
    for mine, their in names.items():
        parts = (their,) if isinstance(their, str) else their
        made[f"{ours}.*.{mine}"] = tuple(f"{theirs}.*.{part}" for part in parts)
    return made


def qkv(place: str) -> dict[str, tuple[str, ...]]:
    return {f"{ATTENTION}.qkv_proj": tuple(f"{place}.{part}_proj" for part in "qkv")}


def fairseq_layer(
    outer: str, mlp: str = "ffn.", expert: str = "", letter: str = ""
) -> dict[str, str | tuple[str, ...]]:
    """Return the names of tensors in a layer of fairseq, torchscale, BART, Marian or Kosmos-2.

    `outer` is the position of the norms, "before" or "after". `mlp` is the prefix of the
    feed-forward network's tensors. `letter` is the suffix of a modality in BEiT-3's tensor names.
    `expert` is the suffix of a modality in Magneto's tensor names.
    """
    attention, feed_forward = f"self_attention{expert}", f"feed_forward{expert}"
    return {
        f"{attention}.{outer}": f"self_attn_layer_norm{letter}",
        f"{attention}.attention.qkv_proj": tuple(f"self_attn.{p}_proj{letter}" for p in "qkv"),
        f"{attention}.attention.inside": f"self_attn.inner_attn_ln{letter}",
        f"{attention}.attention.out_proj": f"self_attn.out_proj{letter}",
        f"{feed_forward}.{outer}": f"final_layer_norm{letter}",
        f"{feed_forward}.mlp.fc1": f"{mlp}fc1",
        f"{feed_forward}.mlp.inside": f"{mlp}ffn_layernorm",
        f"{feed_forward}.mlp.fc2": f"{mlp}fc2",
    }


def fairseq_decoder_layer(outer: str, mlp: str = "ffn.") -> dict[str, str | tuple[str, ...]]:
    parts = {f"cross_attention.attention.{part}_proj": f"encoder_attn.{part}_proj"
             for part in ("q", "k", "v", "out")}  # fmt: skip
    norm = {f"cross_attention.{outer}": "encoder_attn_layer_norm"}
    return {**fairseq_layer(outer, mlp), **norm, **parts}


# GPT-2's matrices have shape (in, out).
TRANSPOSED = Layout(Tensor.t, Tensor.t)
GPT2_LAYER: Names = {
    "self_attention.before": "ln_1",
    f"{ATTENTION}.qkv_proj": "attn.c_attn",
    f"{ATTENTION}.out_proj": "attn.c_proj",
    "feed_forward.before": "ln_2",
    f"{MLP}.fc1": "mlp.c_fc",
    f"{MLP}.fc2": "mlp.c_proj",
}


def read_gpt2(config: Any) -> dict[str, Any]:
    own = None if config.embd_pdrop == config.resid_pdrop else config.embd_pdrop
    return {"ffn_width": config.n_inner or 4 * config.n_embd, "embedding_dropout": own}


GPT2 = ModelFormat(
    "gpt2", "GPT2Config", ("GPT2LMHeadModel", "GPT2Model"), LanguageModel, LanguageModelConfig,
    fields={
        "width": "n_embd", "layers": "n_layer", "heads": "n_head",
        "max_length": "n_positions", "activation": activation("activation_function"),
        "norm_eps": "layer_norm_epsilon", "vocab_size": "vocab_size",
        "tie_embeddings": "tie_word_embeddings", "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
    },
    fixed={"placement": "pre", "positions": "learned", **UNSCALED},
    required={
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False, "reorder_and_upcast_attn": False,
    },
    read=read_gpt2,
    write=lambda config: {"n_inner": config.ffn_width, "embd_pdrop": config.input_dropout},
    names={
        "embedding.table": "wte", "decoder.position_embedding.table": "wpe",
        "decoder.final_norm": "ln_f", "head": "lm_head",
        **{
            f"decoder.layers.*.{mine}": TheirTensors((f"h.*.{their}",), TRANSPOSED)
            for mine, their in GPT2_LAYER.items()
        },
    },
    prefix="transformer.", ignored=r"^lm_head|attn\.(masked_)?bias$",
)  # fmt: skip

GATES = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "relu": "reglu",
    "relu2": "relu2_glu",
}
"""Maps names of activations in the library transformers to Magneto's gated activations."""


def read_llama(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"{config.model_type} with rope_parameters={rope} is not supported, only "
                         "rope_type 'default' without partial_rotary_factor")  # fmt: skip
    window = getattr(config, "sliding_window", None)
    return {"rotary_base": rope["rope_theta"], "windows": () if window is None else (window,)}


def write_llama(config: LanguageModelConfig) -> dict[str, Any]:
    return {
        "head_dim": config.head_width,
        "num_key_value_heads": config.key_value_heads or config.heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
    }


LLAMA = ModelFormat(
    "llama", "LlamaConfig", ("LlamaForCausalLM", "LlamaModel"), LanguageModel, LanguageModelConfig,
    fields={
        **SIZES, **WORDS, "key_value_heads": "num_key_value_heads", "head_dim": "head_dim",
        "activation": activation("hidden_act", GATES), "norm_eps": "rms_norm_eps",
        "attention_dropout": "attention_dropout",
    },
    fixed={
        "placement": "pre", "norm": "rmsnorm", "bias": False, "positions": "rotary", **UNSCALED,
    },
    required={"attention_bias": False, "mlp_bias": False},
    read=read_llama,
    write=write_llama,
    names={
        "embedding.table": "embed_tokens", "decoder.final_norm": "norm", "head": "lm_head",
        **layers("decoder.layers", "layers", {
            "self_attention.before": "input_layernorm",
            **qkv("self_attn"),
            f"{ATTENTION}.out_proj": "self_attn.o_proj",
            "feed_forward.before": "post_attention_layernorm",
            f"{MLP}.fc1": ("mlp.gate_proj", "mlp.up_proj"),
            f"{MLP}.fc2": "mlp.down_proj",
        }),
    },
    ignored="^lm_head",
)  # fmt: skip
MISTRAL = replace(
    LLAMA, name="mistral", config="MistralConfig", classes=("MistralForCausalLM", "MistralModel"),
    write=lambda config: write_llama(config) | {"sliding_window": config.window(0)},
)  # fmt: skip


def bert_names(prefix: str) -> Names:
    encoder = f"{prefix}encoder"
    return {
        f"{prefix}embedding.table": "embeddings.word_embeddings",
        f"{encoder}.position_embedding.table": "embeddings.position_embeddings",
        f"{prefix}token_type": "embeddings.token_type_embeddings",
        f"{encoder}.input_norm": "embeddings.LayerNorm",
        **layers(f"{encoder}.layers", "encoder.layer", {
            f"{ATTENTION}.qkv_proj": (
                "attention.self.query", "attention.self.key", "attention.self.value",
            ),
            f"{ATTENTION}.out_proj": "attention.output.dense",
            "self_attention.after": "attention.output.LayerNorm",
            f"{MLP}.fc1": "intermediate.dense",
            f"{MLP}.fc2": "output.dense",
            "feed_forward.after": "output.LayerNorm",
        }),
    }  # fmt: skip


def read_head_dropout(config: Any) -> dict[str, Any]:
    rate = getattr(config, "classifier_dropout", None)
    return {"head_dropout": config.hidden_dropout_prob if rate is None else rate}


BERT = ModelFormat(
    "bert", "BertConfig", ("BertModel",), TextEncoder, TextEncoderConfig,
    fields={
        **SIZES, **DROPOUTS, "activation": activation("hidden_act"), "norm_eps": "layer_norm_eps",
        "max_length": "max_position_embeddings", "vocab_size": "vocab_size",
        "token_types": "type_vocab_size",
    },
    fixed={"placement": "post", "positions": "learned", "input_norm": "layernorm", **UNSCALED},
    required={"position_embedding_type": "absolute", "is_decoder": False},
    names=bert_names(""),
    prefix="bert.",
    ignored=r"^pooler|^cls\.|^classifier|^qa_outputs|position_ids$",
    options={"add_pooling_layer": False},
)  # fmt: skip
MASKED_BERT = replace(
    BERT, classes=("BertForMaskedLM", "BertForPreTraining"), model=MaskedLanguageModel,
    shape=MaskedLanguageModelConfig,
    fields={**BERT.fields, "tie_embeddings": "tie_word_embeddings"},
    required={**BERT.required, "hidden_act": "gelu"},  # also of the head
    names={
        **bert_names("text_encoder."), "head.dense": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.vocabulary": "cls.predictions.decoder",
    },
    ignored=r"^pooler|^cls\.predictions\.bias|^cls\.seq_relationship|position_ids$",
    absent=r"^cls\.predictions\.bias$", options={},
)  # fmt: skip
BERT_CLASSIFIER = replace(
    BERT, classes=("BertForSequenceClassification",), model=TextClassifier,
    shape=TextClassifierConfig,
    fields={**BERT.fields, "classes": "num_labels", "head_dropout": "classifier_dropout"},
    read=read_head_dropout,
    names={
        **bert_names("text_encoder."), "head.dense": "pooler.dense", "head.answer": "classifier",
    },
    ignored="position_ids$", options={},
)  # fmt: skip

MARIAN_NAMES: Names = {
    "embedding.table": "shared",
    "logits_bias": tensor("final_logits_bias", layout=ROW),
    **layers("transformer.encoder.layers", "encoder.layers", fairseq_layer("after", "")),
    **layers("transformer.decoder.layers", "decoder.layers", fairseq_decoder_layer("after", "")),
}


def check_stacks(config: Any) -> dict[str, Any]:
    sizes = {"encoder_attention_heads": config.decoder_attention_heads,
             "encoder_ffn_dim": config.decoder_ffn_dim}  # fmt: skip
    require(config.model_type, vars(config), sizes)
    return {}


BART = ModelFormat(
    "bart", "BartConfig", ("BartForConditionalGeneration", "BartModel"), TranslationModel,
    TranslationConfig,
    fields={
        "width": "d_model", "encoder_layers": "encoder_layers", "decoder_layers": "decoder_layers",
        "heads": "decoder_attention_heads", "ffn_width": "decoder_ffn_dim",
        "activation": activation("activation_function"), "max_length": "max_position_embeddings",
        "vocab_size": "vocab_size", **SCALED, **BRANCH_DROPOUTS,
    },
    fixed={"placement": "post", "positions": "learned", "input_norm": "layernorm"},
    required={"tie_word_embeddings": True, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    read=check_stacks,
    write=lambda config: {
        "encoder_attention_heads": config.heads, "encoder_ffn_dim": config.ffn_width,
        "forced_eos_token_id": None,  # not transformers' default, a token of BART's vocabulary
    },
    names={
        **MARIAN_NAMES,
        **{
            f"transformer.{stack}.input_norm": f"{stack}.layernorm_embedding"
            for stack in ("encoder", "decoder")
        },
        **{
            f"transformer.{stack}.position_embedding.table.weight":
            tensor(f"{stack}.embed_positions.weight", layout=FROM_TWO)
            for stack in ("encoder", "decoder")
        },
    },
    ignored=r"^lm_head|embed_tokens",
)  # fmt: skip
MARIAN = replace(
    BART, name="marian", config="MarianConfig", classes=("MarianMTModel", "MarianModel"),
    fixed={"placement": "post", "positions": "sinusoidal", "input_norm": "none"},
    required={**BART.required, "share_encoder_decoder_embeddings": True},
    names=MARIAN_NAMES,
    ignored=r"^lm_head|embed_tokens|embed_positions", absent="embed_positions",
)  # fmt: skip


def image_length(config: Any) -> int:
    size = ImageClassifierConfig(image_size=config.image_size, patch_size=config.patch_size)
    return 1 + size.patches


IMAGES: Fields = {
    **SIZES, **DROPOUTS, "activation": activation("hidden_act"), "norm_eps": "layer_norm_eps",
    "image_size": "image_size", "patch_size": "patch_size", "channels": "num_channels",
    "classes": "num_labels",
}  # fmt: skip
VIT = ModelFormat(
    "vit", "ViTConfig", ("ViTForImageClassification",), ImageClassifier, ImageClassifierConfig,
    fields={**IMAGES, "unbiased": choice("qkv_bias", (), ("q", "k", "v"))},
    fixed={
        "placement": "pre", "class_token": "learned", "positions": "learned", "pooling": "first",
    },
    read=lambda config: {"max_length": image_length(config)},
    names={
        "embedding.proj": "embeddings.patch_embeddings.projection",
        "class_token.vector": tensor("embeddings.cls_token", layout=TOKEN),
        "encoder.position_embedding.table.weight":
        tensor("embeddings.position_embeddings", layout=ROW),
        "encoder.final_norm": "layernorm",
        "head": "classifier",
        **layers("encoder.layers", "layers", {
            "self_attention.before": "layernorm_before",
            **qkv("attention"),
            f"{ATTENTION}.out_proj": "attention.o_proj",
            "feed_forward.before": "layernorm_after",
            f"{MLP}.fc1": "mlp.fc1",
            f"{MLP}.fc2": "mlp.fc2",
        }),
    },
    prefix="vit.", ignored=r"^pooler|mask_token$",
)  # fmt: skip


def read_beit(config: Any) -> dict[str, Any]:
    if config.use_relative_position_bias:
        require(config.model_type, vars(config), {"use_shared_relative_position_bias": False})
    shared = "shared_relative_bias" if config.use_shared_relative_position_bias else "none"
    grid_positions = "relative_bias" if config.use_relative_position_bias else shared
    return {"max_length": image_length(config), "grid_positions": grid_positions}


def write_beit(config: ImageClassifierConfig) -> dict[str, Any]:
    return {
        "use_relative_position_bias": config.grid_positions == "relative_bias",
        "use_shared_relative_position_bias": config.grid_positions == "shared_relative_bias",
    }


TABLE = "relative_position_bias_table"
BEIT = replace(
    VIT, name="beit", config="BeitConfig", classes=("BeitForImageClassification",),
    fields={
        **IMAGES, "drop_path": "drop_path_rate",
        "layer_scale": Field("layer_scale_init_value", lambda v: v or None, lambda v: v or 0.0),
        "positions": choice("use_absolute_position_embeddings", "learned", "none"),
        "pooling": choice("use_mean_pooling", "mean_then_norm", "first"),
    },
    fixed={"placement": "pre", "class_token": "learned", "unbiased": ("k",)},
    read=read_beit,
    write=write_beit,
    names={
        **VIT.names, "pooled_norm": "pooler.layernorm",
        "encoder.grid_positions.bias.weight": tensor(f"shared_position_bias.{TABLE}"),
        f"encoder.layers.*.{ATTENTION}.positions.bias.weight":
        tensor(f"layers.*.relative_position_bias.{TABLE}"),
        "encoder.layers.*.self_attention.layer_scale.weight": tensor("layers.*.lambda_1"),
        "encoder.layers.*.feed_forward.layer_scale.weight": tensor("layers.*.lambda_2"),
    },
    prefix="beit.", ignored=r"mask_token$|relative_position_index$",
    absent="relative_position_index$",
)  # fmt: skip


def fairseq_sinusoids(rows: int, width: int, first: int) -> Tensor:
    """Return fairseq's sinusoids of shape (rows, width), from position `first` on.

    The largest wavelength is 10000 * 2 pi. In Magneto and Marian, the largest wavelength is
    smaller.
    """
    half = width // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angles = torch.arange(first, first + rows).float()[:, None] * frequency
    return torch.nn.functional.pad(torch.cat((angles.sin(), angles.cos()), 1), (0, width % 2))


def kosmos2_positions(their_config: Any, our_config: LanguageModelConfig) -> State:
    first = their_config.pad_token_id + 1
    table = fairseq_sinusoids(our_config.max_length, our_config.width, first)
    return {"decoder.position_embedding.table.weight": table}


KOSMOS2 = ModelFormat(
    "kosmos_2_text_model", "Kosmos2TextConfig", ("Kosmos2TextForCausalLM", "Kosmos2TextModel"),
    LanguageModel, LanguageModelConfig,
    fields={
        **WORDS, "width": "embed_dim", "layers": "layers", "heads": "attention_heads",
        "ffn_width": "ffn_dim", "activation": activation("activation_function"),
        "norm_eps": "layer_norm_eps", **SCALED, **BRANCH_DROPOUTS,
    },
    fixed={"placement": "sub", "positions": "learned"},
    required={"add_cross_attention": False, "layerdrop": 0.0},
    write=lambda config: {"pad_token_id": 1},
    names={
        "embedding.table": "embed_tokens", "decoder.final_norm": "layer_norm", "head": "lm_head",
        **layers("decoder.layers", "layers", fairseq_layer("before")),
    },
    ignored="^lm_head",
    computed=kosmos2_positions,
)  # fmt: skip

# The first format of a name also reads classes that no format of that name lists.
FORMATS = (
    GPT2,
    BERT,
    MASKED_BERT,
    BERT_CLASSIFIER,
    BART,
    MARIAN,
    VIT,
    BEIT,
    KOSMOS2,
    LLAMA,
    MISTRAL,
)
