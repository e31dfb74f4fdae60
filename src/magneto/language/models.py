"""Text models: language model, text encoder, masked language model, text classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from magneto.functional.cross_entropy import linear_cross_entropy
from magneto.language.config import (
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
    TextEncoderConfig,
)
from magneto.nn.config import TransformerConfig
from magneto.nn.embedding import TextEmbedding, VectorTable
from magneto.nn.init import NormalLinear, Projection, build_norm
from magneto.nn.transformer import Decoder, Encoder


class LanguageModel(nn.Module):
    """Decoder-only language model.

    The output projection has no bias. Without tied embeddings, the projection is initialised from
    N(0, 1/width).
    """

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TextEmbedding(config.vocab_size, config.width, config.embedding_scale)
        self.decoder = Decoder(config)
        width, std = config.width, config.width**-0.5
        size = self.embedding.table.num_embeddings
        self.head = NormalLinear(width, size, bias=False, std=std)
        if config.tie_embeddings:
            self.head.weight = self.embedding.table.weight

    def logits(self, features: Tensor) -> Tensor:
        """Return logits (..., vocab_size) of features (..., width)."""
        return self.head(features)

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        targets: Tensor | None = None,
        cache: Any = None,
    ) -> Any:
        """Return logits, or the loss if targets are given.

        The loss computes the logits of `loss_chunk` tokens at a time.

        Args:
            tokens: Tokens of shape (batch, length).
            attention_mask: Boolean mask, True where attention is allowed; see `Decoder`.
            targets: Next tokens, (batch, length). `IGNORED` targets do not count.
            cache: Keys and values of earlier tokens; see `Decoder`.

        Returns:
            Logits (batch, length, vocab_size), or a `CrossEntropyLoss` if targets are given.
        """
        features = self.decoder(self.embedding(tokens), attention_mask, cache=cache)
        if targets is None:
            return self.head(features)
        chunk = self.config.loss_chunk
        return linear_cross_entropy(features, self.head.weight, targets, chunk=chunk)


class TextEncoder(nn.Module):
    """Token embedding, optional segment embedding, and encoder."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TextEmbedding(config.vocab_size, config.width, config.embedding_scale)
        learned = config.token_types > 0
        std = config.width**-0.5 if learned else 0.0
        self.token_type = VectorTable(max(config.token_types, 1), config.width, std)
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
            tokens: Tokens of shape (batch, length).
            attention_mask: Boolean mask (batch, length), False for padding.
            token_types: Token types of shape (batch, length); by default all 0.

        Returns:
            Features of shape (batch, length, width).
        """
        types = tokens.new_zeros(()) if token_types is None else token_types
        return self.encoder(self.embedding(tokens) + self.token_type(types), attention_mask)


class MaskedLanguageHead(nn.Module):
    """BERT's masked-token head: dense, GELU, norm, output projection (arXiv 1810.04805).

    The dense matrix has Xavier normal initialisation. The output projection is initialised from
    N(0, 1/width). Biases are 0. The initial weights do not depend on the norm placement.
    """

    def __init__(self, config: TransformerConfig, vocab_size: int) -> None:
        super().__init__()
        width, std = config.width, config.width**-0.5
        self.dense = Projection(width, [("dense", width)], bias=True)
        self.activation = nn.GELU()
        self.norm = build_norm(config.norm, config.width, config)
        self.vocabulary = NormalLinear(width, vocab_size, bias=True, std=std)

    def transform(self, features: Tensor) -> Tensor:
        """Return the input of the output projection, (..., width)."""
        return self.norm(self.activation(self.dense(features)))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (..., vocab_size) of features (..., width)."""
        return self.vocabulary(self.transform(features))


class MaskedLanguageModel(nn.Module):
    """`TextEncoder` with a `MaskedLanguageHead` on the masked positions."""

    def __init__(self, config: MaskedLanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.text_encoder = TextEncoder(config)
        table = self.text_encoder.embedding.table
        self.head = MaskedLanguageHead(config, table.num_embeddings)
        if config.tie_embeddings:
            self.head.vocabulary.weight = table.weight

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        targets: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Any:
        """Return logits, or the loss if targets are given.

        The loss computes the logits of `loss_chunk` tokens at a time.

        Args:
            tokens: Masked input tokens, (batch, length).
            attention_mask: Boolean mask, True where attention is allowed; see `Encoder`.
            positions: Positions to predict, (batch, predictions); by default all.
            targets: Original tokens, (batch, predictions). `IGNORED` (-100) targets do not count.
            token_types: Token types of shape (batch, length); by default all 0.

        Returns:
            Logits (batch, predictions, vocab_size), or a `CrossEntropyLoss` if targets are given.
        """
        features = self.text_encoder(tokens, attention_mask, token_types)
        if positions is not None:
            index = positions[..., None].expand(-1, -1, features.shape[-1])
            features = features.gather(1, index)
        if targets is None:
            return self.head(features)
        vocabulary, chunk = self.head.vocabulary, self.config.loss_chunk
        features = self.head.transform(features)
        return linear_cross_entropy(
            features, vocabulary.weight, targets, vocabulary.bias, chunk=chunk
        )


class ClassificationHead(nn.Module):
    """Classification head: dropout, dense, tanh, dropout, linear (arXiv 1810.04805, 1907.11692).

    The head's input is the encoder output at the first position, or the mean over all positions
    except padding. The dense matrix has Xavier normal initialisation. The output layer is
    initialised from N(0, 0.02²), as in BERT, so that the first loss is near ln(classes). Biases are
    0. The initial weights do not depend on the norm placement.
    """

    def __init__(self, width: int, classes: int, dropout: float, pooling: str = "first") -> None:
        super().__init__()
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.dense = Projection(width, [("dense", width)], bias=True)
        self.activation = nn.Tanh()
        self.answer = NormalLinear(width, classes, bias=True, std=0.02)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits (batch, classes).

        Args:
            features: Encoder output, (batch, length, width).
            mask: Boolean mask (batch, length), False for padding; by default all True.
        """
        if self.pooling == "first":
            read = features[:, 0]
        elif mask is None:
            read = features.mean(1)
        else:
            real = mask[..., None].to(features.dtype)
            read = (features * real).sum(1) / real.sum(1)
        pooled = self.activation(self.dense(self.dropout(read)))
        return self.answer(self.dropout(pooled))


class TextClassifier(nn.Module):
    """`TextEncoder` with a `ClassificationHead`.

    Raises:
        ValueError: If `vocab_size` or `classes` is not set.
    """

    def __init__(self, config: TextClassifierConfig) -> None:
        super().__init__()
        if config.classes is None:
            raise ValueError("classes is not set")
        self.config = config
        self.text_encoder = TextEncoder(config)
        self.head = ClassificationHead(
            config.width, config.classes, config.head_dropout, config.pooling
        )

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """Return logits (batch, classes), or numbers (batch, 1) for regression.

        The arguments are as in `TextEncoder`.
        """
        return self.head(self.text_encoder(tokens, attention_mask, token_types), attention_mask)
