"""Language models: tokens in, a decoder, the vocabulary out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from magneto.functional.cross_entropy import linear_cross_entropy
from magneto.language.config import LanguageModelConfig
from magneto.nn.embedding import TextEmbedding
from magneto.nn.init import NormalLinear
from magneto.nn.transformer import Decoder


class LanguageModel(nn.Module):
    """Embedding, decoder, projection to the vocabulary (no bias; N(0, 1/width) if not tied)."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set")
        self.config = config
        self.embedding = TextEmbedding(config.vocab_size, config.width, config.embedding_scale)
        self.decoder = Decoder(config)
        width, std = config.width, config.width**-0.5
        self.head = NormalLinear(width, config.vocab_size, bias=False, std=std)
        if config.tie_embeddings:
            self.head.weight = self.embedding.table.weight

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits of the decoder's features, (..., width)."""
        return self.head(features)

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
            (batch, length, vocab_size), or a `CrossEntropyLoss`.
        """
        features = self.decoder(self.embedding(tokens), attention_mask, cache=cache)
        if targets is None:
            return self.logits(features)
        chunk = self.config.loss_chunk
        return linear_cross_entropy(features, self.head.weight, targets, chunk=chunk)
