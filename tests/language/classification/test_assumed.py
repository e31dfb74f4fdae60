"""The longest inputs that a recipe allows, and what is assumed of its classes."""

import torch

from magneto.language.classification_inputs import (
    CLASSES,
    assume_labels,
    assume_vocabulary,
    longest_texts,
)
from magneto.language.config import ClassificationDataConfig, TextClassifierConfig

MODEL = TextClassifierConfig()


def test_classes_are_those_that_are_named() -> None:
    assert assume_labels(MODEL, ClassificationDataConfig(labels=("no", "yes", "so"))) == (
        "no", "yes", "so",
    )  # fmt: skip
    assert len(assume_labels(MODEL, ClassificationDataConfig())) == CLASSES
    assert len(assume_labels(TextClassifierConfig(classes=5), ClassificationDataConfig())) == 5
    assert assume_labels(MODEL, ClassificationDataConfig(target="number")) == ()


def test_texts_are_full() -> None:
    made = longest_texts(3, ClassificationDataConfig(max_length=20))
    assert tuple(made["tokens"].shape) == (3, 20) and bool(made["mask"].all())
    assert made["labels"].dtype == torch.int64
    numbers = longest_texts(3, ClassificationDataConfig(max_length=20, target="number"))
    assert numbers["labels"].dtype == torch.float32


def test_a_learnt_tokenizer_is_as_large_as_it_is_asked_to_be() -> None:
    assert assume_vocabulary(MODEL, ClassificationDataConfig(vocab_size=900)).vocab_size == 900
