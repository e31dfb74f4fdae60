"""What a trained classifier says of texts that have no label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from magneto.language.classification.data import assemble_all, padded
from magneto.language.classification.model import TextClassifier
from magneto.language.classification.task import TextClassification
from magneto.language.classification.texts import TextPair, is_empty
from magneto.progress import SILENT

# Texts that the model reads at once.
BATCH = 64


@dataclass(frozen=True)
class TextPrediction:
    """What a model says of a text.

    Attributes:
        label: The likeliest class, or a number as text; "" for a text without any visible word.
        probabilities: Of all classes, in their order; empty for numbers.
    """

    label: str
    probabilities: Mapping[str, float] = field(default_factory=dict)


@torch.no_grad()
def predict_texts(
    task: TextClassification, model: TextClassifier, rows: Sequence[TextPair]
) -> tuple[list[TextPrediction], int]:
    """Return what a model says of texts, in their order, and how many were too long for it.

    Args:
        task: Of the run; its data is not looked at.
        model: With the run's weights, in evaluation mode.
        rows: Texts, or pairs of them.
    """
    asked = [number for number, row in enumerate(rows) if not is_empty(row)]
    found = [TextPrediction("")] * len(rows)
    if not asked:
        return found, 0
    inputs, second, cut = assemble_all(
        [rows[number] for number in asked], task.tokenizer, task.data_config, SILENT
    )
    device = next(model.parameters()).device
    order = np.argsort([len(tokens) for tokens in inputs], kind="stable")
    for some in np.split(order, range(BATCH, len(order), BATCH)):
        batch = padded([inputs[place] for place in some], second[some], task.tokenizer.pad)
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        answers = task.answers(model, batch).cpu()
        said = _numbers(answers) if task.data_config.number else _classes(answers, task.labels)
        for place, prediction in zip(some, said, strict=True):
            found[asked[place]] = prediction
    return found, cut


def _classes(logits: torch.Tensor, labels: Sequence[str]) -> Iterator[TextPrediction]:
    for shares in logits.softmax(-1).tolist():
        by_name = dict(zip(labels, shares, strict=True))
        yield TextPrediction(max(by_name, key=lambda name: by_name[name]), by_name)


def _numbers(answers: torch.Tensor) -> Iterator[TextPrediction]:
    for number in answers.squeeze(-1).tolist():
        yield TextPrediction(f"{number:.6g}")
