"""Texts that are not there: the longest that a recipe allows, for plans made without data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from magneto.data.assumed_tokenizer import assume_tokenizer
from magneto.data.tokenizer import Tokenizer
from magneto.language.classification.config import ClassificationDataConfig, TextClassifierConfig
from magneto.language.classification.data import padded

# Where neither the model nor the data says how many there are; the head is small.
CLASSES = 2


def assume_vocabulary(model: TextClassifierConfig, data: ClassificationDataConfig) -> Tokenizer:
    """Return a tokenizer of the size that the configuration says."""
    name = "bpe" if data.tokenizer == "auto" else data.tokenizer
    return assume_tokenizer(name, ("bpe",), data.vocab_size, model.vocab_size)


def assume_labels(model: TextClassifierConfig, data: ClassificationDataConfig) -> tuple[str, ...]:
    """Return the classes that the recipe names, or as many as the model has; () for a number."""
    if data.number:
        return ()
    return data.labels or tuple(map(str, range(model.classes or CLASSES)))


def longest_texts(examples: int, data: ClassificationDataConfig) -> dict[str, Tensor]:
    """Return a batch of the longest inputs that fit, as `TextClassification` reads it."""
    rows = [np.zeros(data.max_length, np.int64)] * examples
    made = padded(rows, np.full(examples, data.max_length), pad=0)
    kind = torch.float32 if data.number else torch.int64
    return made | {"labels": torch.zeros(examples, dtype=kind)}
