"""Image classification: one label per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.batching import ShuffledExamples
from magneto.data.frequencies import count_numbers, frequency_nats
from magneto.data.lazy_batches import LazyBatches, mixed_order
from magneto.progress import SILENT, Progress
from magneto.training.task import BatchStream, Loss, Scores, Task
from magneto.vision.classifier import ImageClassifier
from magneto.vision.data import LabelledImages, load_images

EVALUATION_BATCH = 256


class ImageClassification(Task):
    """Labelled images, an `ImageClassifier`, cross-entropy in nats per image."""

    primary_metric = "accuracy"
    higher_is_better = True
    unit = "images"

    @cached_property
    def splits(self) -> tuple[LabelledImages, LabelledImages]:
        """Training and validation images."""
        return load_images(self.data_config, self.seed)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Load the images, so that a missing library is known at once."""
        shape = tuple(self.splits[0].images.shape[1:])
        wanted = (
            self.model_config.channels,
            self.model_config.image_size,
            self.model_config.image_size,
        )
        if shape != wanted:
            raise ValueError(
                f"{self.data_config.source} has images of {shape}, the model takes {wanted}: "
                "set model.channels and model.image_size"
            )
        classes = int(max(split.labels.max() for split in self.splits)) + 1
        known = self.model_config.classes
        if known < classes:
            where = self.data_config.source
            raise ValueError(f"{where} has {classes} classes, the model {known}: set model.classes")

    def build_model(self) -> ImageClassifier:
        """Build the model."""
        return ImageClassifier(self.model_config)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images in random order."""
        train = self.splits[0]

        def make(numbers: np.ndarray) -> tuple[Tensor, Tensor]:
            rows = torch.from_numpy(numbers)
            return train.images[rows], train.labels[rows]

        return ShuffledExamples(len(train), batch_size, seed, make)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        """Sum the cross-entropy over images; "accuracy" is logged with it."""
        images, labels = batch
        logits = model(images).float()
        right = (logits.detach().argmax(-1) == labels).sum()
        count = torch.ones_like(labels).sum()
        return Loss(F.cross_entropy(logits, labels, reduction="sum"), count, {"accuracy": right})

    def size(self, batch: tuple[Tensor, Tensor]) -> int:
        """Return the number of images."""
        return len(batch[1])

    def validation_batches(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Return the validation images and their labels, in mixed order."""
        held = self.splits[1]
        plans = torch.from_numpy(mixed_order(len(held))).split(EVALUATION_BATCH)
        return LazyBatches(plans, lambda rows: (held.images[rows], held.labels[rows]))

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Scores:
        """Sum the cross-entropy; count the images, and those that are right."""
        loss = self.loss(model, batch)
        right = loss.logs["accuracy"]
        return Scores({"loss": loss.total, "right": right, "count": loss.count})

    def export(self, model: Any, directory: Path) -> str:
        """Write a model, and its image processor, for transformers."""
        from magneto.hf import export_images

        return export_images(model, directory)

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss and accuracy."""
        return {"loss": sums["loss"] / sums["count"], "accuracy": sums["right"] / sums["count"]}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the classes' frequencies and the accuracy of the commonest."""
        size, held = self.model_config.classes, islice(self.validation_batches(), limit)
        train = count_numbers(self.splits[0].labels.numpy(), size)
        asked = count_numbers(torch.cat([labels for _, labels in held]).numpy(), size)
        right = float(asked[train.argmax()])
        nats = frequency_nats(train, asked)
        return self.summarise({"loss": nats, "right": right, "count": float(asked.sum())}, ())
