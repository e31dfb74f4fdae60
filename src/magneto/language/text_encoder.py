"""A bidirectional text encoder: tokens in, features out."""

from __future__ import annotations

from torch import Tensor, nn

from magneto.language.config import TextEncoderConfig
from magneto.nn.embedding import Table, TextEmbedding
from magneto.nn.transformer import Encoder


class TextEncoder(nn.Module):
    """Token vectors, plus a vector per kind of segment if there are any, through an encoder."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set")
        self.config = config
        self.embedding = TextEmbedding(config.vocab_size, config.width, config.embedding_scale)
        learned = config.token_types > 0
        std = config.width**-0.5 if learned else 0.0
        self.token_type = Table(max(config.token_types, 1), config.width, std)
        self.token_type.weight.requires_grad_(learned)
        self.encoder = Encoder(config)

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """Return features.

        Args:
            tokens: (batch, length).
            attention_mask: Boolean, True = real; (batch, length).
            token_types: (batch, length), all 0 if not given.

        Returns:
            (batch, length, width).
        """
        types = tokens.new_zeros(()) if token_types is None else token_types
        return self.encoder(self.embedding(tokens) + self.token_type(types), attention_mask)
