"""Cases of `make bench`: six fields at three shapes, with one batch each.

Batches are random, the same for every contender, and contain no padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Layers, width and heads. Of an encoder-decoder each half has half of the layers.
SHAPES = {"24 x 64": (24, 64, 4), "6 x 256": (6, 256, 4), "4 x 768": (4, 768, 12),
          "tiny": (2, 32, 2)}  # fmt: skip
# Examples, length (tokens; patches of an image; frames of speech), and vocabulary or classes.
BATCHES = {
    "causal-lm": (4, 256, 8192),
    "masked-lm": (4, 128, 8192),
    "translation": (8, 64, 8192),
    "image-classification": (8, 64, 1000),
    "transducer": (4, 400, 512),
    "visual-question-answering": (8, 64, 8192),
}
FIELDS = tuple(BATCHES)
TINY_LENGTHS = {"transducer": 64}
PATCH = 8
# Share of tokens that a masked language model guesses.
MASKED = 0.15
# Tokens of a question, and answers to choose from.
QUESTION, ANSWERS = 16, 1000
# Filterbanks of a frame; frames to a label.
MEL_BINS, FRAMES_OF_A_LABEL = 80, 20


@dataclass(frozen=True)
class Case:
    """A field at one shape.

    Attributes:
        field: Name of the product's task.
        layers: Layers of the Transformer.
        width: Width of the residual stream; the feed-forward network is four times as wide.
        heads: Attention heads.
        batch: Examples per step.
        length: Tokens of a text (of both texts in translation), patches of an image, or frames.
        vocab_size: Number of tokens, or of image classes.
    """

    field: str
    layers: int
    width: int
    heads: int
    batch: int
    length: int
    vocab_size: int

    @property
    def ffn_width(self) -> int:
        return 4 * self.width

    @property
    def image_size(self) -> int:
        """Height and width of a square image with `length` patches."""
        return PATCH * math.isqrt(self.length)

    @property
    def outputs(self) -> int:
        """Number of predicted tokens, classes or answers."""
        return ANSWERS if self.field == "visual-question-answering" else self.vocab_size

    def describe(self) -> str:
        """Return the sizes as text."""
        what = {"image-classification": "patches", "transducer": "frames"}.get(
            self.field, "patches and a question" if "question" in self.field else "tokens"
        )
        kind = "classes" if self.field == "image-classification" else "vocabulary"
        return (f"{self.layers} layers of width {self.width}, {self.heads} heads; {self.batch} x "
                f"{self.length} {what}; {kind} {self.vocab_size}")  # fmt: skip


def case_of(field: str, shape: str) -> Case:
    """Return the case of a field at one of `SHAPES`."""
    if shape == "tiny":
        return Case(field, *SHAPES[shape], 2, TINY_LENGTHS.get(field, 16), 300)
    return Case(field, *SHAPES[shape], *BATCHES[field])


def draw(case: Case) -> dict[str, Any]:
    """Return the random batch of a case as tensors by name, the same every time."""
    generator = torch.Generator().manual_seed(2)

    def numbers(high: int, *size: int) -> Tensor:
        # 0 is blank, padding or a special token for somebody.
        return torch.randint(4, high, size, generator=generator)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    rows, length, vocabulary = case.batch, case.length, case.vocab_size
    size = case.image_size
    if case.field == "causal-lm":
        return {"window": numbers(vocabulary, rows, length + 1)}
    if case.field == "masked-lm":
        count = max(1, int(MASKED * length))
        places = [torch.randperm(length, generator=generator)[:count].sort().values
                  for _ in range(rows)]  # fmt: skip
        tokens = numbers(vocabulary, rows, length)
        positions = torch.stack(places)
        targets = tokens.gather(1, positions)
        return {"tokens": tokens.scatter(1, positions, 3), "positions": positions,
                "targets": targets}  # fmt: skip
    if case.field == "translation":
        return {"source": numbers(vocabulary, rows, length),
                "window": numbers(vocabulary, rows, length + 1)}  # fmt: skip
    if case.field == "image-classification":
        return {"images": normal(rows, 3, size, size), "labels": numbers(vocabulary, rows)}
    if case.field == "transducer":
        labels = length // FRAMES_OF_A_LABEL
        return {"features": normal(rows, length, MEL_BINS),
                "targets": numbers(vocabulary, rows, labels)}  # fmt: skip
    return {"images": normal(rows, 3, size, size), "questions": numbers(vocabulary, rows, QUESTION),
            "labels": numbers(ANSWERS, rows)}  # fmt: skip
