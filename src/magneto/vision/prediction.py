"""What a model says of an image: names with shares, and pictures of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Prediction:
    """What a model says of an image.

    Attributes:
        labels: Names of classes and their shares, the largest first: probabilities of a label, or
            the parts of the image that show them.
        pictures: PNG files' bytes by name: the image with what was found drawn over it.
    """

    labels: Sequence[tuple[str, float]]
    pictures: Mapping[str, bytes] = field(default_factory=dict)


@torch.no_grad()
def class_predictions(model: nn.Module, images: Tensor, names: Sequence[str]) -> list[Prediction]:
    """Return the probabilities of all classes.

    Args:
        model: From images to logits (batch, classes), in evaluation mode.
        images: (batch, channels, height, width).
        names: Of the classes; those of the model without a name are called by their numbers.
    """
    logits = model(images.to(next(model.parameters()).device)).float().cpu()
    words = [*names, *(str(number) for number in range(len(names), logits.shape[1]))]
    shares, order = logits.softmax(1).sort(dim=1, descending=True, stable=True)
    return [
        Prediction([(words[number], share) for number, share in zip(*row, strict=True)])
        for row in zip(order.tolist(), shares.tolist(), strict=True)
    ]
