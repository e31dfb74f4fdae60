"""What is known of a recipe before its data is read: its weights, and a model without data."""

from __future__ import annotations

from typing import Any

import torch

from magneto.config import override
from magneto.recipe import Recipe, build_recipe
from magneto.training.distributed import one_process, pick_device
from magneto.training.model import FillRecorder, check_model_memory

# Tokenizers that are learnt from data.
LEARNT = ("auto", "bpe", "sentencepiece", "characters")
# Where nothing says how many there are: classes of texts, and answers (VQA v2's).
CLASSES, ANSWERS = 2, 3129


def without_data(recipe: Recipe) -> dict[str, Any]:
    """Return fields with which a recipe's model, its largest batch and its loss need no data.

    What only data tells is taken from the configuration, or assumed: a learnt tokenizer has all
    the tokens that it may have, and a tokenizer of images is small.
    """
    model, data, found = recipe.model, recipe.data, dict[str, Any]()
    if hasattr(data, "tokenizer"):
        begun = data.tokenizer == "auto" and getattr(model, "pretrained", None)
        if model.vocab_size is None and data.tokenizer in LEARNT and not begun:
            found["model.vocab_size"] = data.vocab_size
        if found or model.vocab_size is not None:
            found["data.tokenizer"] = "bytes"  # its numbers are not looked at
    if hasattr(data, "labels") and not data.labels and not data.number:
        found["data.labels"] = [str(number) for number in range(model.classes or CLASSES)]
    if hasattr(data, "class_names") and model.classes is None:
        found["model.classes"] = len(data.classes or range(CLASSES))
    if hasattr(model, "answers") and data.answers is None:
        found["model.answers"] = model.answers or ANSWERS
    if hasattr(data, "image_tokenizer"):
        found["data.image_tokenizer"] = "builtin:noise"
    return found


def check_weights_first(recipe: Recipe) -> None:
    """See that one process can hold what a model's weights take, before its data is read.

    Of a task of one's own data may tell the sizes: they are seen once there is data
    (`magneto.training.model.check_memory`).

    Raises:
        ValueError: If it can't; says what to lower.
    """
    if ":" in recipe.task:
        return
    plain = build_recipe(recipe.name, override(recipe.to_mapping(), without_data(recipe)))
    with torch.device("meta"), FillRecorder():
        model = plain.build_task().build_model()
    check_model_memory(model, recipe.training, one_process(pick_device(recipe.training.device)))
