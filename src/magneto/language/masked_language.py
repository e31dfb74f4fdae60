"""Masked language models: an encoder that guesses hidden tokens (paper, section 4.2)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from magneto.functional.cross_entropy import linear_cross_entropy
from magneto.language.config import MaskedLanguageModelConfig
from magneto.language.text_encoder import TextEncoder
from magneto.nn.config import TransformerConfig
from magneto.nn.init import NormalLinear, Projection
from magneto.nn.norm import build_norm


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
