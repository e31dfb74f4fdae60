"""transformers' GPT-2 as our language model, and back: Pre-LN, learned positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from magneto.hf.weights.layout import Format, Pair, activation, modules
from magneto.language.config import LanguageModelConfig
from magneto.language.models import LanguageModel

MATRICES = {
    "self_attention.attention.qkv_proj": "attn.c_attn",
    "self_attention.attention.out_proj": "attn.c_proj",
    "feed_forward.mlp.fc1": "mlp.c_fc",
    "feed_forward.mlp.fc2": "mlp.c_proj",
}


def read(config: Any) -> dict[str, Any]:
    """Return our values that depend on several of theirs."""
    own = None if config.embd_pdrop == config.resid_pdrop else config.embd_pdrop
    return {"ffn_width": config.n_inner or 4 * config.n_embd, "embedding_dropout": own}


def transposed(tensor: Tensor) -> Tensor:
    """Return a matrix transposed (GPT-2's Conv1D keeps (in, out)); a vector as it is."""
    return tensor.t() if tensor.ndim == 2 else tensor


def matrices(config: LanguageModelConfig) -> list[Pair]:
    """Return which matrix is which; theirs are transposed, and qkv is fused as ours."""
    return [
        pair
        for layer in range(config.layers)
        for pair in modules(
            MATRICES, f"decoder.layers.{layer}.", f"h.{layer}.", transposed, transposed
        )
    ]


FORMATS = (
    Format(
        "gpt2", "GPT2Config", ("GPT2LMHeadModel", "GPT2Model"), LanguageModel, LanguageModelConfig,
        fields={
            "width": "n_embd", "layers": "n_layer", "heads": "n_head",
            "max_length": "n_positions", "activation": activation("activation_function"),
            "norm_eps": "layer_norm_epsilon", "vocab_size": "vocab_size",
            "tie_embeddings": "tie_word_embeddings", "dropout": "resid_pdrop",
            "attention_dropout": "attn_pdrop",
        },
        fixed={"placement": "pre", "positions": "learned", "embedding_scale": "none"},
        required={
            "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False, "reorder_and_upcast_attn": False,
        },
        read=read,
        write=lambda config: {"n_inner": config.ffn_width, "embd_pdrop": config.input_dropout},
        modules={
            "embedding.table": "wte", "decoder.position_embedding.table": "wpe",
            "decoder.final_norm": "ln_f", "head": "lm_head",
        },
        layers=(
            ("decoder.layers", "h",
             {"self_attention.before": "ln_1", "feed_forward.before": "ln_2"}),
        ),
        tensors=matrices,
        prefix="transformer.", ignored=r"^lm_head|attn\.(masked_)?bias$",
    ),
)  # fmt: skip
