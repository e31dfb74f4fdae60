"""Linear probe and nearest-neighbour accuracy of the frozen features of every layer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.files import import_extra
from magneto.progress import SILENT, Progress
from magneto.vision.image_task import ImageTask
from magneto.vision.images import UNLABELLED

# Number of neighbours and temperature of their weights, as in DINO (arXiv 2104.14294).
NEIGHBOURS, TEMPERATURE = 20, 0.07
# Largest number of iterations of the linear probe.
ITERATIONS = 300
POOLINGS = {"class_token": "[CLS]", "mean": "mean"}


@dataclass(frozen=True)
class Features:
    """Features of images at every layer.

    Attributes:
        layers: Features for each pooling ("mean", "class_token"), float32 (layers + 1, images,
            width). Layer 0 is the embeddings.
        labels: Labels (images,).
        broken: Number of unreadable images that were left out.
    """

    layers: dict[str, Tensor]
    labels: Tensor
    broken: int


@torch.no_grad()
def layer_features(model: Any, images: Tensor) -> dict[str, Tensor]:
    """Return the features of a batch at every layer, for each kind of pooling.

    The features of each position are normalised before pooling, because the scale of the residual
    stream differs between layers. Images are (batch, channels, height, width). Features are float32
    (layers + 1, batch, width), on the CPU.
    """
    encoder, grid = model.encoder, model.config.grid
    x = model.embed(images)
    found = [x, *encoder.features(x, range(len(encoder.layers)))]
    each = [F.layer_norm(features.float(), features.shape[-1:]) for features in found]
    pooled = {"mean": torch.stack([features[:, grid.prefix :].mean(1) for features in each])}
    if grid.prefix:
        pooled["class_token"] = torch.stack([features[:, 0] for features in each])
    return {name: pooled[name].cpu() for name in POOLINGS if name in pooled}


def collect_features(
    task: ImageTask, model: Any, limit: int | None = None, progress: Progress = SILENT
) -> list[Features]:
    """Return the features of training and validation images, from at most `limit` batches of each.

    Raises:
        ValueError: If an image has no label, or if no image of a split can be read.
    """
    device, found = next(model.parameters()).device, []
    for split in (task.splits.train, task.splits.validation):
        if (split.labels_of() == UNLABELLED).any():
            raise ValueError("some images have no label: use labelled images (--data)")
        parts: list[tuple[dict[str, Tensor], Tensor]] = []
        broken = 0
        for number, batch in enumerate(islice(task.fixed_batches(split), limit), 1):
            good = ~batch["broken"]
            broken += int((~good).sum())
            if good.any():
                layers = layer_features(model, batch["images"][good].to(device))
                parts.append((layers, batch["labels"][good]))
            progress.update("batches of features", number, None)
        if not parts:
            raise ValueError("all training images or all validation images are unreadable")
        layers = {name: torch.cat([part[name] for part, _ in parts], 1) for name in parts[0][0]}
        found.append(Features(layers, torch.cat([labels for _, labels in parts]), broken))
    return found


def score_features(
    train: Features, held: Features, progress: Progress = SILENT
) -> list[dict[str, Any]]:
    """Return the accuracies of classifiers on frozen features.

    Returns:
        A row for each layer and pooling. Layer 0 is the embeddings. Each row has the accuracy
        of a linear classifier ("linear") and of nearest neighbours ("neighbours").
    """
    scores: list[dict[str, Any]] = []
    for pooling, layers in train.layers.items():
        for layer, (known, asked) in enumerate(zip(layers, held.layers[pooling], strict=True)):
            arguments = known, train.labels, asked, held.labels
            found = {"linear": linear_accuracy(*arguments),
                     "neighbours": neighbour_accuracy(*arguments)}  # fmt: skip
            scores.append({"layer": layer, "pooling": pooling, **found})
            progress.update("probed layers", len(scores), len(train.layers) * len(layers))
    return scores


def linear_accuracy(known: Tensor, labels: Tensor, asked: Tensor, wanted: Tensor) -> float:
    """Return the accuracy of logistic regression (C = 1) on standardised features.

    The regression is trained on the features `known` (images, width) with the classes `labels`
    (images,). The regression is tested on the features `asked` with the classes `wanted`.
    """
    linear = import_extra("sklearn.linear_model", "vision", "a linear probe needs scikit-learn")
    mean, deviation = known.mean(0), known.std(0).clamp_min(1e-6)
    if len(labels.unique()) == 1:
        return float((wanted == labels[0]).float().mean())
    probe = linear.LogisticRegression(max_iter=ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may stop at ITERATIONS
        probe.fit(((known - mean) / deviation).numpy(), labels.numpy())
    answers = probe.predict(((asked - mean) / deviation).numpy())
    return float(np.mean(answers == wanted.numpy()))


def neighbour_accuracy(known: Tensor, labels: Tensor, asked: Tensor, wanted: Tensor) -> float:
    """Return the accuracy of a nearest-neighbour classifier with cosine similarity.

    The arguments are those of `linear_accuracy`.
    """
    neighbors = import_extra("sklearn.neighbors", "vision", "nearest neighbours need scikit-learn")
    vote = neighbors.KNeighborsClassifier(
        min(NEIGHBOURS, len(known)),
        metric="cosine",
        weights=lambda distances: np.exp((1 - distances) / TEMPERATURE),
    )
    return vote.fit(known.numpy(), labels.numpy()).score(asked.numpy(), wanted.numpy())


def score_lines(scores: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a table with a row for each layer."""
    poolings = dict.fromkeys(score["pooling"] for score in scores)
    head = [f"{POOLINGS[p]} {method}" for p in poolings for method in ("linear", "k-NN")]
    lines = ["layer       " + "".join(f"{word:>14}" for word in head)]
    for layer in dict.fromkeys(score["layer"] for score in scores):
        found = [score for score in scores if score["layer"] == layer]
        cells = "".join(f"{s['linear']:>14.4f}{s['neighbours']:>14.4f}" for s in found)
        lines.append(f"{layer or 'embeddings':<12}{cells}")
    return lines
