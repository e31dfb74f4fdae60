"""Image classification: one label per image."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.batching import ShuffledExamples
from magneto.progress import SILENT, Progress
from magneto.training.task import BatchStream, Loss, Task
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

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        limit: int | None = None,
        progress: Progress = SILENT,
    ) -> dict[str, float]:
        """Return loss and accuracy."""
        held = self.splits[1]
        batches = list(
            zip(
                held.images.split(EVALUATION_BATCH),
                held.labels.split(EVALUATION_BATCH),
                strict=True,
            )
        )
        totals = torch.zeros(3, device=device)
        for done, (images, labels) in enumerate(batches[:limit], 1):
            loss = self.loss(model, (images.to(device), labels.to(device)))
            totals += torch.stack((loss.total, loss.count, loss.logs["accuracy"])).float()
            progress.update("evaluating batches", done, len(batches[:limit]))
        total, count, right = totals.tolist()
        return {"loss": total / count, "accuracy": right / count}
