"""Language models: tokens in, a decoder, the vocabulary out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Decoder

IGNORED = -100
"""A target that is not predicted."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TransformerConfig):
    """A decoder-only language model.

    Attributes:
        vocab_size: Tokens; None for as many as the tokenizer has.
        tie_embeddings: Whether the output matrix is the embedding table.
        embedding_scale: "sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance, as the
            paper's theory has its input and as fairseq does.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    vocab_size: int | None = None
    tie_embeddings: bool = True
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    loss_chunk: int = 2048


@dataclass(frozen=True)
class LanguageModelLoss:
    """Summed cross-entropy in nats, and how many tokens it is over.

    Attributes:
        total: What to minimise, a scalar with a gradient.
        count: Tokens predicted.
        nll: The sum without label smoothing, a scalar without a gradient.
    """

    total: Tensor
    count: Tensor
    nll: Tensor


class TextEmbedding(nn.Module):
    """A table of token vectors, N(0, 1/width), and their scale."""

    def __init__(self, vocab_size: int, width: int, scale: Literal["none", "sqrt_width"]) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.scale = width**0.5 if scale == "sqrt_width" else 1.0
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) token numbers to (batch, length, width)."""
        return self.table(tokens) * self.scale


class LanguageModel(nn.Module):
    """Embedding, decoder, projection to the vocabulary (no bias; N(0, 1/width) if not tied)."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set")
        self.config = config
        self.embedding = TextEmbedding(config.vocab_size, config.width, config.embedding_scale)
        self.decoder = Decoder(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=config.width**-0.5)
        if config.tie_embeddings:
            self.head.weight = self.embedding.table.weight

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        targets: Tensor | None = None,
        cache: Any = None,
    ) -> Any:
        """Return logits, or with targets the loss, whose logits never exist all at once.

        Args:
            tokens: (batch, length).
            attention_mask: Boolean, True = may attend; see `Decoder`.
            targets: (batch, length), the token to predict at each place, `IGNORED` for none.
            cache: Keys and values of what came before; see `Decoder`.

        Returns:
            (batch, length, vocab_size), or a `LanguageModelLoss`.
        """
        features = self.decoder(self.embedding(tokens), attention_mask, cache=cache)
        if targets is None:
            return self.head(features)
        return cross_entropy(features, targets, self.head, self.config.loss_chunk)


def cross_entropy(
    features: Tensor,
    targets: Tensor,
    head: Callable[[Tensor], Tensor],
    chunk: int,
    smoothing: float = 0.0,
) -> LanguageModelLoss:
    """Sum the cross-entropy of `head(features)`, `chunk` rows of logits at a time.

    A chunk's logits are made again in the backward pass, so that the peak is one chunk's.

    Args:
        features: (batch, length, width).
        targets: (batch, length); `IGNORED` counts for nothing.
        head: Maps (rows, width) to (rows, vocabulary).
        chunk: Rows at a time; 0 for all at once, without making them again.
        smoothing: Share of the target that is spread over the whole vocabulary
            (arXiv 1512.00567, section 7).
    """
    rows, answers = features.flatten(0, -2), targets.flatten()
    count = (answers != IGNORED).sum()
    if chunk == 0 or chunk >= len(answers):
        sums = _chunk_loss(rows, answers, head, smoothing)
        return _loss(sums, count)
    parts = [
        checkpoint(
            _chunk_loss, part, answer, head, smoothing,
            use_reentrant=False, preserve_rng_state=False,
        )
        for part, answer in zip(rows.split(chunk), answers.split(chunk), strict=True)
    ]  # fmt: skip
    sums = torch.stack(parts).sum(0)
    return _loss(sums, count)


def _loss(sums: Tensor, count: Tensor) -> LanguageModelLoss:
    # Copies: FSDP warns of a module that returns views.
    return LanguageModelLoss(sums[0].clone(), count, sums[1].detach().clone())


def _chunk_loss(
    rows: Tensor, answers: Tensor, head: Callable[[Tensor], Tensor], smoothing: float
) -> Tensor:
    """Return (2,): the sum to minimise, and without smoothing."""
    logits = head(rows).float()
    if smoothing == 0:
        nll = F.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum")
        return torch.stack((nll, nll.detach()))
    counted = answers != IGNORED
    log_total = logits.logsumexp(-1)
    picked = logits.gather(-1, answers.clamp(min=0)[:, None])[:, 0]
    nll = ((log_total - picked) * counted).sum()
    spread = ((log_total - logits.mean(-1)) * counted).sum()
    return torch.stack(((1 - smoothing) * nll + smoothing * spread, nll.detach()))


def count_parameters(model: nn.Module) -> int:
    """Count parameters, a shared one once."""
    return sum(parameter.numel() for parameter in model.parameters())
