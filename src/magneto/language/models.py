"""Models of text: a decoder; an encoder, alone or with a head that guesses tokens or answers."""

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
from magneto.nn.embedding import Table, TextEmbedding
from magneto.nn.init import NormalLinear, Projection, build_norm
from magneto.nn.transformer import Decoder, Encoder


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


class MaskedLanguageHead(nn.Module):
    """BERT's head: dense, GELU, norm, then the vocabulary with a bias (arXiv 1810.04805).

    Weights are Xavier normal for the dense matrix and N(0, 1/width) for the vocabulary; no
    placement scales them. Biases are zero.
    """

    def __init__(self, config: TransformerConfig, vocab_size: int) -> None:
        super().__init__()
        width, std = config.width, config.width**-0.5
        self.dense = Projection(width, [("dense", width)], bias=True)
        self.activation = nn.GELU()
        self.norm = build_norm(config.norm, config.width, config)
        self.vocabulary = NormalLinear(width, vocab_size, bias=True, std=std)

    def transform(self, features: Tensor) -> Tensor:
        """(..., width) to (..., width): all but the vocabulary."""
        return self.norm(self.activation(self.dense(features)))

    def forward(self, features: Tensor) -> Tensor:
        """(..., width) to (..., vocab_size)."""
        return self.vocabulary(self.transform(features))


class MaskedLanguageModel(nn.Module):
    """`TextEncoder` and head; the head sees only the places asked for."""

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
        """Return logits, or with targets the loss, whose logits never exist all at once.

        Args:
            tokens: (batch, length), some hidden.
            attention_mask: Boolean, True = may attend; see `Encoder`.
            positions: (batch, guesses), the places to guess; all of them if not given.
            targets: Of the same shape as what is guessed; -100 for none.
            token_types: (batch, length), all 0 if not given.

        Returns:
            (batch, guesses or length, vocab_size), or a `CrossEntropyLoss`.
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
    """Dropout, dense, tanh, dropout, linear, on the first feature (arXiv 1810.04805, 1907.11692).

    Or on the mean of all features.

    Weights are Xavier normal for the dense matrix and N(0, 0.02²) for the answer (BERT's), so that
    the first loss is near ln classes; no placement scales them. Biases are zero.
    """

    def __init__(self, width: int, classes: int, dropout: float, pooling: str = "first") -> None:
        super().__init__()
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.dense = Projection(width, [("dense", width)], bias=True)
        self.activation = nn.Tanh()
        self.answer = NormalLinear(width, classes, bias=True, std=0.02)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """(batch, length, width) to (batch, classes).

        Args:
            features: Of the encoder.
            mask: Boolean, True = real; (batch, length). None if all are.
        """
        read = features[:, 0] if self.pooling == "first" else mean_feature(features, mask)
        pooled = self.activation(self.dense(self.dropout(read)))
        return self.answer(self.dropout(pooled))


def mean_feature(features: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of the real features, (batch, width); see `ClassificationHead.forward`."""
    if mask is None:
        return features.mean(1)
    real = mask[..., None].to(features.dtype)
    return (features * real).sum(1) / real.sum(1)


class TextClassifier(nn.Module):
    """`TextEncoder` and head.

    Raises:
        ValueError: If the configuration leaves the vocabulary or the classes open.
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
        """Return logits, or numbers.

        Args:
            tokens: (batch, length), each row begun by `<s>`.
            attention_mask: Boolean, True = real; (batch, length).
            token_types: (batch, length), all 0 if not given.

        Returns:
            (batch, classes).
        """
        return self.head(self.text_encoder(tokens, attention_mask, token_types), attention_mask)
