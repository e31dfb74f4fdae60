"""Causal language models to time: Magneto's placements, and the same shape in other libraries.

All have exact GELU, Pre-LN unless the placement differs, learned absolute positions, a tied head
without bias, and no dropout. Remaining differences are in `NOTES` and in the parameter counts of
the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bench_cases import Case
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


# With names for sections of `make gpu`.
CASES = {
    "tiny": Case("causal-lm", 2, 64, 4, 2, 32, 512),
    "gpu": Case("causal-lm", 12, 768, 12, 16, 1024, 50304),
    "gpu-deep": Case("causal-lm", 24, 1024, 16, 8, 1024, 50304),
}


class FirstOf(nn.Module):
    """Wrapper of a model with several outputs that returns logits only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> Tensor:
        """Return (batch, length, vocabulary)."""
        return self.model(*given)[0]


class TorchLanguageModel(nn.Module):
    """Embeddings, `nn.TransformerEncoder` with a causal mask, tied head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            case.width,
            case.heads,
            case.ffn_width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.embedding = nn.Embedding(case.vocab_size, case.width)
        self.position = nn.Embedding(case.length, case.width)
        self.encoder = nn.TransformerEncoder(
            layer, case.layers, norm=nn.LayerNorm(case.width), enable_nested_tensor=False
        )
        self.head = nn.Linear(case.width, case.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        for table in (self.embedding, self.position):
            nn.init.normal_(table.weight, std=0.02)
        mask = nn.Transformer.generate_square_subsequent_mask(case.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) to (batch, length, vocabulary)."""
        x = self.embedding(tokens) + self.position.weight
        return self.head(self.encoder(x, mask=self.mask, is_causal=True))


def build_ours(case: Case, placement: str) -> LanguageModel:
    config = LanguageModelConfig(
        width=case.width,
        layers=case.layers,
        heads=case.heads,
        ffn_width=case.ffn_width,
        vocab_size=case.vocab_size,
        max_length=case.length,
        positions="learned",
        embedding_scale="none",
        placement=placement,
    )
    return LanguageModel(config)


def build_gpt2(case: Case) -> Any:
    """Build transformers' GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=case.vocab_size,
        n_positions=case.length,
        n_embd=case.width,
        n_layer=case.layers,
        n_head=case.heads,
        n_inner=case.ffn_width,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="sdpa",
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def gpt2_logits(case: Case) -> nn.Module:
    model = build_gpt2(case)
    model.config.use_cache = False
    return FirstOf(model)


def build_x_transformers(case: Case) -> nn.Module:
    """Build x-transformers' decoder."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=case.width,
        depth=case.layers,
        heads=case.heads,
        attn_dim_head=case.width // case.heads,
        ff_mult=case.ffn_width / case.width,
        attn_flash=True,
        verbose=False,
    )
    return TransformerWrapper(
        num_tokens=case.vocab_size, max_seq_len=case.length, tie_embedding=True, attn_layers=layers
    )


def build_torchscale(case: Case) -> nn.Module:
    """Build torchscale's decoder."""
    from torchscale.architecture.config import DecoderConfig
    from torchscale.architecture.decoder import Decoder
    from torchscale.component.embedding import PositionalEmbedding, TextEmbedding

    config = DecoderConfig(
        decoder_embed_dim=case.width,
        decoder_layers=case.layers,
        decoder_attention_heads=case.heads,
        decoder_ffn_embed_dim=case.ffn_width,
        vocab_size=case.vocab_size,
        share_decoder_input_output_embed=True,
        activation_fn="gelu",
        dropout=0.0,
    )
    tables = {
        "embed_tokens": TextEmbedding(case.vocab_size, case.width),
        "embed_positions": PositionalEmbedding(case.length + 2, case.width),  # from 2
    }
    return FirstOf(Decoder(config, **tables))


def ours(placement: str) -> Callable[[Case], nn.Module]:
    """Return the builder of one placement."""
    return lambda case: build_ours(case, placement)


# The most telling first: on a GPU what comes last may find no time left.
CONTENDERS: dict[str, Callable[[Case], nn.Module]] = {
    "magneto sub": ours("sub"),
    "nanoGPT style": NanoGPT,
    "transformers GPT-2": gpt2_logits,
    "magneto pre": ours("pre"),
    "x-transformers": build_x_transformers,
    "torch nn.TransformerEncoder": TorchLanguageModel,
    "torchscale": build_torchscale,
    "magneto post": ours("post"),
}


def build(name: str, case: Case, device: torch.device) -> nn.Module:
    """Build a contender on a device, in training mode, from the same random state."""
    torch.manual_seed(1)
    return CONTENDERS[name](case).to(device).train()
