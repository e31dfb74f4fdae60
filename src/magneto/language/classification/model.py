"""Text classifiers: a text encoder, its first feature pooled, classes or one number out."""

from __future__ import annotations

from torch import Tensor, nn

from magneto.language.classification.config import TextClassifierConfig
from magneto.language.text_encoder import TextEncoder
from magneto.nn.init import NormalLinear, Projection


class ClassificationHead(nn.Module):
    """Dropout, dense, tanh, dropout, linear, on the first feature (arXiv 1810.04805, 1907.11692).

    Weights are Xavier normal for the dense matrix and N(0, 0.02²) for the answer (BERT's), so that
    the first loss is near ln classes; no placement scales them. Biases are zero.
    """

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = Projection(width, [("dense", width)], bias=True)
        self.activation = nn.Tanh()
        self.answer = NormalLinear(width, classes, bias=True, std=0.02)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, length, width) to (batch, classes)."""
        pooled = self.activation(self.dense(self.dropout(features[:, 0])))
        return self.answer(self.dropout(pooled))


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
        self.head = ClassificationHead(config.width, config.classes, config.head_dropout)

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
        return self.head(self.text_encoder(tokens, attention_mask, token_types))
