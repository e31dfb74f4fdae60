"""Text classifiers: a text encoder, its first feature pooled, classes or one number out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from magneto.models.text_encoder import TextEncoder, TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class TextClassifierConfig(TextEncoderConfig):
    """A text encoder with a head that reads its first feature.

    Attributes:
        classes: Of the answer, 1 for a number; None for as many as the data has.
        head_dropout: Before and between the head's two layers (0.1 in BERT and in the paper).
        pretrained: Directory of a run whose encoder and tokenizer to begin with, of the same shape
            as this; "{placement}" in it stands for the placement's name. None begins from scratch.
    """

    classes: int | None = None
    head_dropout: float = 0.1
    pretrained: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None and self.classes < 1:
            raise ValueError(f"classes must be 1 or more, not {self.classes}")
        if not 0 <= self.head_dropout < 1:
            raise ValueError(f"head_dropout must be in [0, 1), not {self.head_dropout}")


class ClassificationHead(nn.Module):
    """Dropout, dense, tanh, dropout, linear, on the first feature (arXiv 1810.04805, 1907.11692).

    Weights are Xavier normal for the dense matrix and N(0, 0.02²) for the answer (BERT's), so that
    the first loss is near ln classes; no placement scales them. Biases are zero.
    """

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.activation = nn.Tanh()
        self.answer = nn.Linear(width, classes)
        nn.init.xavier_normal_(self.dense.weight)
        nn.init.normal_(self.answer.weight, std=0.02)
        for layer in (self.dense, self.answer):
            nn.init.zeros_(layer.bias)

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
