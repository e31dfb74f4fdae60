"""BEiT-3 over images and texts (arXiv 2208.10442) as ours, and back, by its authors' names.

Read are their pre-trained weights, those fine-tuned on VQA v2, NLVR2, retrieval and captioning, and
torchscale's BEiT3 by itself; see `beit3_heads`. In their names "A" is vision and "B" language. Of
both tables of positions the first two rows are never read, and written as zeros.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from magneto.hf.formats import timm
from magneto.hf.formats.beit3 import PREFIX
from magneto.hf.formats.beit3_heads import MASK_TOKEN, Head, head_of_model, head_of_weights
from magneto.hf.formats.layout import (
    Pair,
    State,
    activation,
    add_two,
    as_row,
    check_placement,
    check_same,
    fill,
    module,
    read_state,
    skip_two,
    squeezed,
    their_activation,
    write_state,
)
from magneto.vision_language.config import VisionLanguageConfig

POSITIONS = f"{PREFIX}encoder.embed_positions"
WORDS = f"{PREFIX}text_embed.weight"
PATCHES = f"{PREFIX}vision_embed.proj"
FINAL_NORM = f"{PREFIX}encoder.layer_norm"
BLOCKS = f"{PREFIX}encoder.layers."
EPSILON = 1e-5
"""Of norms: torchscale's default, and torch's, which the authors' heads have."""
MODALITIES = (("vision", "A"), ("language", "B"))
# torchscale's names of a layer's parts, with A or B in the place of {}.
PARTS = {
    "self_attention.experts.{}.before": "self_attn_layer_norm.{}",
    "self_attention.experts.{}.attention.inside": "self_attn.inner_attn_ln.{}",
    "self_attention.experts.{}.attention.out_proj": "self_attn.out_proj.{}",
    "feed_forward.experts.{}.before": "final_layer_norm.{}",
    "feed_forward.experts.{}.mlp.fc1": "ffn.{}.fc1",
    "feed_forward.experts.{}.mlp.inside": "ffn.{}.ffn_layernorm",
    "feed_forward.experts.{}.mlp.fc2": "ffn.{}.fc2",
}
RATES = ("dropout", "attention_dropout", "activation_dropout")


def load_multiway(state: Mapping[str, Tensor], args: Mapping[str, Any] | None = None) -> nn.Module:
    """Return the authors' BEiT-3 with its head as a model of ours, in evaluation mode.

    Args:
        state: Of one of the authors' models, or of torchscale's BEiT3.
        args: By torchscale's names: `encoder_attention_heads`, by default those of BEiT-3 at that
            width; `layernorm_eps`, 1e-5; `activation_fn`, "gelu"; rates of dropout, 0.

    Raises:
        ValueError: If tensors are missing, or what it computes has no counterpart.
    """
    named = {whole_name(name): tensor for name, tensor in timm.in_float32(state).items()}
    for name in (WORDS, f"{PATCHES}.weight", f"{POSITIONS}.A.weight", f"{POSITIONS}.B.weight"):
        if name not in named:
            raise ValueError(f"these BEiT-3 weights have no {name}: they read no images with texts")
    head = head_of_weights(named)
    config = read_config(named, head, args or {})
    model = head.model(config)
    # All of the authors' models have one; only that of pre-training uses it.
    return fill(model, read_state(pairs(config, head), named, re.escape(MASK_TOKEN))).eval()


def to_multiway(model: nn.Module) -> tuple[State, dict[str, Any]]:
    """Return a model of ours by the authors' names, and torchscale's arguments.

    Raises:
        ValueError: If BEiT-3 has no counterpart; the first difference is named.
    """
    head = head_of_model(model)
    if head is None:
        raise ValueError(f"beit3 has no counterpart of a {type(model).__name__}")
    config: Any = model.config
    check_placement(config, ["sub"], "beit3")
    if config.experts != "decoupled":
        raise ValueError(f"beit3 cannot hold this model: experts is {config.experts!r} here, "
                         "'decoupled' there")  # fmt: skip
    state = write_state(pairs(config, head), model.state_dict())
    # Theirs multiplies the words by nothing.
    if config.embedding_scale == "sqrt_width":
        state[WORDS] = state[WORDS] * math.sqrt(config.width)
        config = replace(config, embedding_scale="none")
    state.setdefault(MASK_TOKEN, torch.zeros(1, 1, config.width))
    args = their_arguments(config)
    check_same(config, read_config(state, head, args), "beit3")
    return state, args


def whole_name(name: str) -> str:
    """Return a name with the prefix that torchscale's BEiT3 has in the authors' models."""
    bare = name.startswith(("text_embed.", "vision_embed.", "encoder."))
    return f"{PREFIX}{name}" if bare else name


def read_config(state: State, head: Head, args: Mapping[str, Any]) -> VisionLanguageConfig:
    """Return the configuration of a model of ours.

    Raises:
        ValueError: If the tensors are no BEiT-3's, or an argument has no counterpart.
    """
    width, channels, patch, _ = state[f"{PATCHES}.weight"].shape
    patches = len(state[f"{POSITIONS}.A.weight"]) - 3
    side = math.isqrt(patches)
    if side * side != patches:
        raise ValueError(f"{patches} patches are no square image")
    layers = 1 + max(int(n.removeprefix(BLOCKS).split(".")[0]) for n in state if BLOCKS in n)
    heads = args.get("encoder_attention_heads")
    epsilon = args.get("layernorm_eps", EPSILON)
    if head.normed and epsilon != EPSILON:
        raise ValueError(f"beit3's head has norms with an epsilon of {EPSILON:g}, its layers of "
                         f"{epsilon:g}: here they share it")  # fmt: skip
    return head.config(
        width=width, layers=layers, placement="sub", norm_eps=epsilon,
        heads=timm.head_count(width, {"num_heads": heads} if heads else {}),
        ffn_width=len(state[f"{BLOCKS}0.ffn.A.fc1.weight"]),
        activation=activation(args.get("activation_fn", "gelu")),
        image_size=side * patch, patch_size=patch, channels=channels,
        vocab_size=len(state[WORDS]), max_length=len(state[f"{POSITIONS}.B.weight"]) - 2,
        embedding_scale="none",
        final_norm="placement" if f"{FINAL_NORM}.A.weight" in state else "none",
        drop_path=args.get("drop_path_rate", 0.0), **{name: args.get(name, 0.0) for name in RATES},
        **{size: len(state[name]) for size, name in head.sizes},
    )  # fmt: skip


def their_arguments(config: VisionLanguageConfig) -> dict[str, Any]:
    """Return the arguments of torchscale's EncoderConfig, by which it builds the same BEiT3."""
    return {
        "multiway": True, "layernorm_embedding": False, "no_output_layer": True,
        "normalize_output": config.final_norm == "placement",
        "encoder_embed_dim": config.width, "encoder_layers": config.layers,
        "encoder_attention_heads": config.heads, "encoder_ffn_embed_dim": config.ffn_width,
        "activation_fn": their_activation(config.activation), "layernorm_eps": config.norm_eps,
        "img_size": config.image_size, "patch_size": config.patch_size, "in_chans": config.channels,
        "vocab_size": config.vocab_size, "max_source_positions": config.max_length + 2,
        "drop_path_rate": config.drop_path, **{name: getattr(config, name) for name in RATES},
    }  # fmt: skip


def pairs(config: Any, head: Head) -> list[Pair]:
    """Return which tensor is which; a norm on top may be in neither."""
    ours, made = head.encoder, list(head.pairs)
    image, text = f"{ours}vision_embedding", f"{ours}text_embedding"
    made += [
        Pair(f"{image}.class_token.vector", (f"{PREFIX}vision_embed.cls_token",), squeezed, as_row),
        Pair(f"{image}.positions.weight", (f"{POSITIONS}.A.weight",), skip_two, add_two),
        Pair(f"{text}.positions.weight", (f"{POSITIONS}.B.weight",), skip_two, add_two),
        Pair(f"{text}.words.table.weight", (WORDS,)),
        *module(f"{image}.patches.proj", PATCHES),
    ]
    for modality, letter in MODALITIES:
        stack = f"{ours}transformer"
        made += module(f"{stack}.final_norm.{modality}", f"{FINAL_NORM}.{letter}")
        for layer in range(config.layers):
            mine, their = f"{stack}.layers.{layer}", f"{BLOCKS}{layer}"
            parts = [f"{their}.self_attn.{part}_proj.{letter}" for part in "qkv"]
            attention = f"{mine}.self_attention.experts.{modality}.attention"
            made += module(f"{attention}.qkv_proj", *parts)
            for name, other in PARTS.items():
                made += module(f"{mine}.{name.format(modality)}", f"{their}.{other.format(letter)}")
    return made
