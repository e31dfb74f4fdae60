"""Encoder-decoder model for translation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from magneto.functional.cross_entropy import CrossEntropyLoss, linear_cross_entropy
from magneto.nn.embedding import TextEmbedding
from magneto.nn.transformer import EncoderDecoder
from magneto.translation.config import TranslationConfig


class TranslationModel(nn.Module):
    """Encoder-decoder. The embeddings and the output share one matrix (paper, appendix)."""

    logits_bias: Tensor

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TextEmbedding(config.vocab_size, config.width, config.embedding_scale)
        size = self.embedding.table.num_embeddings
        self.transformer = EncoderDecoder(config)
        self.head = nn.Linear(config.width, size, bias=False)
        self.head.weight = self.embedding.table.weight
        # Zero and not trained; converted BART and Marian models have values.
        self.register_buffer("logits_bias", torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.logits_bias)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Return encoder features (batch, source length, width) of source tokens."""
        return self.transformer.encoder(self.embedding(source), source_mask)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        target_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Return logits (batch, target length, vocab_size) of the next target tokens."""
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
        """Return logits, or the loss if there are targets.

        Tokens and masks have the shape (batch, length). Masks are False for padding. `target` has
        the inputs of the decoder. `targets` has the tokens to predict. Targets of -100 are ignored.
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
