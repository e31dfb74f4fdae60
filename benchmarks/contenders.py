"""Causal language models to time: Magneto's placements, and the same shape in other libraries.

All have exact GELU, Pre-LN unless the placement differs, learned absolute positions, a tied head
without bias, and no dropout. Remaining differences are in `NOTES` and in the parameter counts of
the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.nano_gpt import NanoGPT
from magneto.language.config import LanguageModelConfig
from magneto.language.models import LanguageModel

NOTES = {
    "torch nn.TransformerEncoder": "norm_first, causal mask; the head and embeddings around it are "
    "the benchmark's",
    "transformers GPT-2": 'activation "gelu" instead of its default tanh form; scaled dot product '
    "attention",
    "x-transformers": "no biases in attention and in layer norms; flash attention on",
    "nanoGPT style": "a page of plain torch, in benchmarks/nano_gpt.py",
    "torchscale": "Sub-LN, its default",
}


@dataclass(frozen=True)
class Shape:
    """Sizes of the models and of their batch."""

    width: int
    layers: int
    heads: int
    ffn_width: int
    vocab_size: int
    batch: int
    length: int


SHAPES = {
    "tiny": Shape(64, 2, 4, 256, 512, 2, 32),
    "gpu": Shape(768, 12, 12, 3072, 50304, 16, 1024),
    "gpu-deep": Shape(1024, 24, 16, 4096, 50304, 8, 1024),
}


class Logits(nn.Module):
    """Wrapper of a transformers model that returns logits only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) to (batch, length, vocabulary)."""
        return self.model(input_ids=tokens, use_cache=False).logits


class TorchLanguageModel(nn.Module):
    """Embeddings, `nn.TransformerEncoder` with a causal mask, tied head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            shape.width,
            shape.heads,
            shape.ffn_width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.position = nn.Embedding(shape.length, shape.width)
        self.encoder = nn.TransformerEncoder(
            layer, shape.layers, norm=nn.LayerNorm(shape.width), enable_nested_tensor=False
        )
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        for table in (self.embedding, self.position):
            nn.init.normal_(table.weight, std=0.02)
        mask = nn.Transformer.generate_square_subsequent_mask(shape.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) to (batch, length, vocabulary)."""
        x = self.embedding(tokens) + self.position.weight
        return self.head(self.encoder(x, mask=self.mask, is_causal=True))


def build_ours(shape: Shape, placement: str) -> nn.Module:
    """Build Magneto's language model."""
    config = LanguageModelConfig(
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        ffn_width=shape.ffn_width,
        vocab_size=shape.vocab_size,
        max_length=shape.length,
        positions="learned",
        embedding_scale="none",
        placement=placement,
    )
    return LanguageModel(config)


def build_gpt2(shape: Shape) -> nn.Module:
    """Build transformers' GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_inner=shape.ffn_width,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="sdpa",
        bos_token_id=0,
        eos_token_id=0,
    )
    return Logits(GPT2LMHeadModel(config))


def build_x_transformers(shape: Shape) -> nn.Module:
    """Build x-transformers' decoder."""
    from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(
        num_tokens=shape.vocab_size,
        max_seq_len=shape.length,
        tie_embedding=True,
        attn_layers=Decoder(
            dim=shape.width,
            depth=shape.layers,
            heads=shape.heads,
            attn_dim_head=shape.width // shape.heads,
            ff_mult=shape.ffn_width / shape.width,
            attn_flash=True,
            verbose=False,
        ),
    )


def build_nano_gpt(shape: Shape) -> nn.Module:
    """Build the model in plain torch."""
    sizes = (shape.width, shape.layers, shape.heads, shape.ffn_width)
    return NanoGPT(*sizes, shape.vocab_size, shape.length)


class FirstOf(nn.Module):
    """Wrapper of a model with several outputs that returns logits only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> Tensor:
        """Return (batch, length, vocabulary)."""
        return self.model(*given)[0]


def build_torchscale(shape: Shape) -> nn.Module:
    """Build torchscale's decoder."""
    from torchscale.architecture.config import DecoderConfig
    from torchscale.architecture.decoder import Decoder
    from torchscale.component.embedding import PositionalEmbedding, TextEmbedding

    config = DecoderConfig(
        decoder_embed_dim=shape.width,
        decoder_layers=shape.layers,
        decoder_attention_heads=shape.heads,
        decoder_ffn_embed_dim=shape.ffn_width,
        vocab_size=shape.vocab_size,
        share_decoder_input_output_embed=True,
        activation_fn="gelu",
        dropout=0.0,
    )
    tables = {
        "embed_tokens": TextEmbedding(shape.vocab_size, shape.width),
        "embed_positions": PositionalEmbedding(shape.length + 2, shape.width),  # from 2
    }
    return FirstOf(Decoder(config, **tables))


def ours(placement: str) -> Callable[[Shape], nn.Module]:
    """Return the builder of one placement."""
    return lambda shape: build_ours(shape, placement)


# The most telling first: on a GPU what comes last may find no time left.
CONTENDERS: dict[str, Callable[[Shape], nn.Module]] = {
    "magneto sub": ours("sub"),
    "nanoGPT style": build_nano_gpt,
    "transformers GPT-2": build_gpt2,
    "magneto pre": ours("pre"),
    "x-transformers": build_x_transformers,
    "torch nn.TransformerEncoder": TorchLanguageModel,
    "torchscale": build_torchscale,
    "magneto post": ours("post"),
}


def build(name: str, shape: Shape, device: torch.device) -> nn.Module:
    """Build a contender on a device, in training mode, from the same random state."""
    torch.manual_seed(1)
    return CONTENDERS[name](shape).to(device).train()
