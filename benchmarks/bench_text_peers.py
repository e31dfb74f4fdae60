"""Text models of other libraries for `make bench`, each with its loss, as their users have them.

Layer norms are before the sublayers unless the library's class has them after. All have exact GELU,
learned positions, tied embeddings and no dropout. Differences are in `bench_contenders.NOTES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bench_cases import Case, draw
from benchmarks.contenders import CONTENDERS, build_gpt2, build_x_transformers
from benchmarks.nano_gpt import plain_blocks

Peer = tuple[nn.Module, Callable[[], Tensor]]


def causal(name: str, case: Case) -> Peer:
    """Return one of `contenders.CONTENDERS` with the mean cross-entropy of all logits."""
    model, window = CONTENDERS[name](case), draw(case)["window"]
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].flatten()
    return model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), targets)


def gpt2(case: Case) -> Peer:
    """Return transformers' GPT-2 with its own loss."""
    model, tokens = build_gpt2(case), draw(case)["window"][:, :-1].contiguous()
    return model, lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss


def x_transformers_causal(case: Case) -> Peer:
    """Return x-transformers' decoder in its own wrapper, which computes the loss."""
    from x_transformers import AutoregressiveWrapper

    net: Any = build_x_transformers(case)
    model, tokens = AutoregressiveWrapper(net), draw(case)["window"][:, :-1].contiguous()
    return model, lambda: model(tokens)


def bert_labels(drawn: dict[str, Tensor]) -> Tensor:
    """Return the label of each masked position, and -100 elsewhere."""
    labels = torch.full_like(drawn["tokens"], -100)
    return labels.scatter(1, drawn["positions"], drawn["targets"])


def bert(case: Case) -> Peer:
    """Return transformers' BERT with its own loss."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=case.vocab_size, hidden_size=case.width, num_hidden_layers=case.layers,
        num_attention_heads=case.heads, intermediate_size=4 * case.width, hidden_act="gelu",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, type_vocab_size=2,
        max_position_embeddings=case.length, attn_implementation="sdpa",
    )  # fmt: skip
    drawn = draw(case)
    model, labels = BertForMaskedLM(config), bert_labels(drawn)
    return model, lambda: model(input_ids=drawn["tokens"], labels=labels).loss


class PlainMasked(nn.Module):
    """Masked language model of plain torch, with BERT's head over the masked positions."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.width
        self.embedding = nn.Embedding(case.vocab_size, width)
        self.position = nn.Embedding(case.length, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = plain_blocks(case)
        self.norm = nn.LayerNorm(width)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, case.vocab_size)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(batch, length) and (batch, guesses) to logits (batch, guesses, vocabulary)."""
        x = self.norm(self.blocks(self.embedding(tokens) + self.position.weight))
        guessed = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
        return self.head(self.transform(guessed))


def plain_masked(case: Case) -> Peer:
    """Return the plain model with the cross-entropy of the masked positions."""
    model, drawn = PlainMasked(case), draw(case)
    answers = drawn["targets"].flatten()

    def loss() -> Tensor:
        logits = model(drawn["tokens"], drawn["positions"])
        return F.cross_entropy(logits.flatten(0, 1), answers)

    return model, loss


def all_places(model: nn.Module, case: Case) -> Peer:
    """Return a model with logits at every position and the cross-entropy of the masked ones."""
    drawn = draw(case)
    labels = bert_labels(drawn).flatten()
    return model, lambda: F.cross_entropy(model(drawn["tokens"]).flatten(0, 1), labels)


def x_transformers_layers(case: Case) -> Any:
    """Return x-transformers' encoder without embeddings."""
    from x_transformers import Encoder

    return Encoder(
        dim=case.width, depth=case.layers, heads=case.heads, attn_flash=True, verbose=False,
        attn_dim_head=case.width // case.heads,
    )  # fmt: skip


def x_transformers_masked(case: Case) -> Peer:
    """Return x-transformers' encoder."""
    from x_transformers import TransformerWrapper

    model = TransformerWrapper(
        num_tokens=case.vocab_size, max_seq_len=case.length, tie_embedding=True,
        attn_layers=x_transformers_layers(case),
    )  # fmt: skip
    return all_places(model, case)


def marian(case: Case) -> Peer:
    """Return transformers' Marian with its own loss."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=case.vocab_size, d_model=case.width, encoder_layers=case.layers // 2,
        decoder_layers=case.layers // 2, encoder_attention_heads=case.heads,
        decoder_attention_heads=case.heads, encoder_ffn_dim=4 * case.width,
        decoder_ffn_dim=4 * case.width, activation_function="gelu", dropout=0.0,
        max_position_embeddings=case.length, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, forced_eos_token_id=1, scale_embedding=True,
        attn_implementation="sdpa",
    )  # fmt: skip
    model, drawn = MarianMTModel(config), draw(case)
    target, labels = drawn["window"][:, :-1].contiguous(), drawn["window"][:, 1:].contiguous()
    mask = torch.ones_like(drawn["source"])

    def loss() -> Tensor:
        return model(
            input_ids=drawn["source"], attention_mask=mask, decoder_input_ids=target,
            labels=labels, use_cache=False,
        ).loss  # fmt: skip

    return model, loss


class PlainTranslation(nn.Module):
    """torch's own `nn.Transformer` between an embedding and a head that share their weights."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width, half = case.width, case.layers // 2
        self.embedding = nn.Embedding(case.vocab_size, width)
        self.position = nn.Embedding(case.length, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.transformer = nn.Transformer(
            width, case.heads, half, half, 4 * width, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True,
        )  # fmt: skip
        mask = nn.Transformer.generate_square_subsequent_mask(case.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(batch, length) of both to logits (batch, length, vocabulary)."""
        x, y = (self.embedding(each) + self.position.weight for each in (source, target))
        features = self.transformer(x, y, tgt_mask=self.mask, tgt_is_causal=True)
        return F.linear(features, self.embedding.weight)


def translated(model: nn.Module, case: Case) -> Peer:
    """Return a model with the cross-entropy of all target tokens."""
    drawn = draw(case)
    target, labels = drawn["window"][:, :-1].contiguous(), drawn["window"][:, 1:].flatten()
    return model, lambda: F.cross_entropy(model(drawn["source"], target).flatten(0, 1), labels)


def plain_translation(case: Case) -> Peer:
    """Return torch's own encoder-decoder."""
    return translated(PlainTranslation(case), case)


def x_transformers_translation(case: Case) -> Peer:
    """Return x-transformers' encoder-decoder, which computes the loss."""
    from x_transformers import XTransformer

    sizes: dict[str, Any] = {}
    for side in ("enc", "dec"):
        sizes |= {
            f"{side}_num_tokens": case.vocab_size, f"{side}_depth": case.layers // 2,
            f"{side}_heads": case.heads, f"{side}_max_seq_len": case.length,
            f"{side}_attn_dim_head": case.width // case.heads, f"{side}_attn_flash": True,
            f"{side}_verbose": False,
        }  # fmt: skip
    model, drawn = XTransformer(dim=case.width, tie_token_emb=True, **sizes), draw(case)
    target = drawn["window"][:, :-1].contiguous()
    return model, lambda: model(drawn["source"], target)
