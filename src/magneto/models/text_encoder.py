"""A bidirectional text encoder: tokens in, features out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from magneto.models.language import TextEmbedding
from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Encoder


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(TransformerConfig):
    """An encoder over tokens.

    Attributes:
        vocab_size: Tokens; None for as many as the tokenizer has.
        token_types: Kinds of segment with a learned vector each; 0 for none. BERT has 2.
        embedding_scale: "sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance.
    """

    vocab_size: int | None = None
    token_types: int = 0
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"


class TextEncoder(nn.Module):
    """Token vectors, plus a vector per kind of segment if there are any, through an encoder."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set")
        self.config = config
        self.embedding = TextEmbedding(config.vocab_size, config.width, config.embedding_scale)
        self.token_type = nn.Embedding(max(config.token_types, 1), config.width)
        nn.init.normal_(self.token_type.weight, std=config.width**-0.5)
        if config.token_types == 0:
            nn.init.zeros_(self.token_type.weight)
            self.token_type.weight.requires_grad_(False)
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
