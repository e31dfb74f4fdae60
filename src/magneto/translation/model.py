"""Sequence to sequence over text: an encoder-decoder with one vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from magneto.functional.cross_entropy import CrossEntropyLoss, linear_cross_entropy
from magneto.nn.embedding import TextEmbedding
from magneto.nn.transformer import EncoderDecoder
from magneto.translation.config import TranslationConfig


class TranslationModel(nn.Module):
    """One embedding table for source, target and output (paper, appendix, translation)."""

    logits_bias: Tensor

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set")
        self.config = config
        self.embedding = TextEmbedding(config.vocab_size, config.width, config.embedding_scale)
        self.transformer = EncoderDecoder(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.head.weight = self.embedding.table.weight
        # Not learned; converted BART and Marian models have one.
        self.register_buffer("logits_bias", torch.empty(config.vocab_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the bias of the logits to zero."""
        nn.init.zeros_(self.logits_bias)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Return the encoder's features of (batch, source length) tokens."""
        return self.transformer.encoder(self.embedding(source), source_mask)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        target_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Return logits (batch, target length, vocab_size) of what follows the target tokens."""
        features = self.transformer.decoder(
            self.embedding(target), target_mask, memory, source_mask, cache
        )
        return self.project(features)

    def project(self, features: Tensor) -> Tensor:
        """Return the logits of features (..., width)."""
        return self.head(features) + self.logits_bias

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor | CrossEntropyLoss:
        """Return logits, or with targets the loss.

        Args:
            source: (batch, source length) tokens.
            target: (batch, target length) tokens the decoder reads.
            source_mask: Boolean, (batch, source length), True = real.
            target_mask: Boolean, (batch, target length).
            targets: (batch, target length) tokens to predict, -100 for none.
        """
        memory = self.encode(source, source_mask)
        if targets is None:
            return self.decode(target, memory, target_mask, source_mask)
        features = self.transformer.decoder(
            self.embedding(target), target_mask, memory, source_mask
        )
        smoothing = self.config.label_smoothing if self.training else 0.0
        return linear_cross_entropy(
            features, self.head.weight, targets, self.logits_bias,
            chunk=self.config.loss_chunk, smoothing=smoothing,
        )  # fmt: skip
