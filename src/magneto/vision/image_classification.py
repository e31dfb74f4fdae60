"""Image classification: one label per image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.config import ConfigError
from magneto.data.frequencies import count_numbers, frequency_nats
from magneto.data.lazy_batches import mixed_order
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, BatchStream, Loss, Scores, Task
from magneto.vision.batches import evaluation_images, training_stream
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig, ImageDataConfig
from magneto.vision.data import load_images
from magneto.vision.images import UNLABELLED, ImageSplits
from magneto.vision.transforms import Reading, training_transform, validation_transform

EVALUATION_BATCH = 256
CLASSES_FILE = "classes.json"


class ImageClassification(Task):
    """Labelled images, an `ImageClassifier`, cross-entropy in nats per image."""

    primary_metric = "accuracy"
    higher_is_better = True
    unit = "images"

    model_config: ImageClassifierConfig
    data_config: ImageDataConfig

    def __init__(self, model: ImageClassifierConfig, data: ImageDataConfig, seed: int) -> None:
        super().__init__(model, data, seed)
        self._progress: Progress = SILENT

    @cached_property
    def splits(self) -> ImageSplits:
        """Training and validation images."""
        return load_images(self.data_config, self.seed, self._progress)

    @cached_property
    def reading(self) -> Reading:
        """The form in which the model reads images."""
        size, channels = self.model_config.image_size, self.model_config.channels
        peak = self.splits.train.images.peak
        return Reading(size, channels, self.data_config.normalisation, peak)

    def prepare(self, progress: Progress = SILENT) -> None:
        """List the images; see that model and data fit together.

        Raises:
            ValueError: If they don't.
        """
        if "splits" in self.__dict__:
            return
        self._progress = progress
        splits, where = self.splits, self.data_config.source
        progress.say(f"{where}: {splits.describe()}")
        validation_transform(self.data_config, self.reading)
        found = splits.train.images.channels
        if found < self.model_config.channels:
            raise ValueError(f"{where} has images of {found} channel, the model takes "
                             f"{self.model_config.channels}: set model.channels")  # fmt: skip
        classes, known = len(splits.classes), self.model_config.classes
        parts = (splits.train, splits.validation)
        lacking = sum(int((part.labels_of() == UNLABELLED).sum()) for part in parts)
        if lacking:
            raise ValueError(f"{where} has {lacking} images without a label; a folder per class "
                             "gives them one, for example")  # fmt: skip
        if known < classes:
            raise ValueError(f"{where} has {classes} classes, the model {known}: set model.classes")

    def build_model(self) -> ImageClassifier:
        """Build the model."""
        return ImageClassifier(self.model_config)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images in random order, augmented."""
        data, train = self.data_config, self.splits.train
        transform = training_transform(data, self.reading)
        return training_stream(train, transform, batch_size, seed, data.augmentation.repeats)

    def examples(self) -> int:
        """Return how many images there are to train on."""
        return len(self.splits.train)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over images; "accuracy" is logged with it.

        So is "broken", the share of images that could not be read, if the source is of files.
        """
        labels = batch["labels"]
        logits = model(batch["images"]).float()
        right = (logits.detach().argmax(-1) == labels).sum()
        logs = {"accuracy": right, "broken": batch["broken"].sum()}
        count = torch.ones_like(labels).sum()
        return Loss(F.cross_entropy(logits, labels, reduction="sum"), count, logs)

    def size(self, batch: dict[str, Tensor]) -> int:
        """Return the number of images."""
        return len(batch["labels"])

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        """Return the validation images and their labels, in mixed order."""
        transform = validation_transform(self.data_config, self.reading)
        return evaluation_images(
            self.splits.validation, transform, EVALUATION_BATCH, self.reading.blank
        )

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Sum the cross-entropy; count the images, and those that are right.

        An image that could not be read is wrong.
        """
        labels, broken = batch["labels"], batch["broken"]
        logits = model(batch["images"]).float()
        return Scores({
            "loss": F.cross_entropy(logits, labels, reduction="sum"),
            "right": ((logits.argmax(-1) == labels) & ~broken).sum(),
            "count": torch.ones_like(labels).sum(),
            "broken": broken.sum(),
        })  # fmt: skip

    def export(self, model: Any, directory: Path) -> str:
        """Write a model, and its image processor, for transformers.

        Raises:
            ConfigError: If the model reads images in a form that the image processor lacks.
        """
        from magneto.hf import export_images

        if self.data_config.normalisation != "half":
            raise ConfigError(["an exported image processor has data.normalisation half alone"])
        return export_images(model, directory)

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss and accuracy, and "broken", the images that could not be read, if any."""
        count = sums["count"]
        found = {"loss": sums["loss"] / count, "accuracy": sums["right"] / count}
        return found | ({"broken": sums["broken"]} if sums["broken"] else {})

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the classes' frequencies and the accuracy of the commonest."""
        size, held = self.model_config.classes, self.splits.validation
        order = mixed_order(len(held))[: limit and limit * EVALUATION_BATCH]
        train = count_numbers(self.splits.train.labels_of(), size)
        asked = count_numbers(held.labels_of(order), size)
        right = float(asked[train.argmax()])
        nats, count = frequency_nats(train, asked), float(asked.sum())
        return self.summarise({"loss": nats, "right": right, "count": count, "broken": 0}, ())

    @classmethod
    def other_data(cls, source: str) -> dict[str, Any]:
        """Return what measures a run on all of other images."""
        return {"data.source": source, "data.validation_source": source}

    @classmethod
    def kept_settings(cls, run: Path) -> dict[str, Any]:
        """Return the run's own classes: other images may be of some of them alone."""
        if not (run / CLASSES_FILE).is_file():
            return {}
        return {"data.classes": json.loads((run / CLASSES_FILE).read_text(encoding="utf-8"))}

    def artifacts(self, directory: Path) -> None:
        """Write the classes, and what names the content of the data."""
        (directory / CLASSES_FILE).write_text(json.dumps(self.splits.classes), encoding="utf-8")
        digest = f"{self.splits.train.digest} {self.splits.validation.digest}"
        (directory / DIGEST_FILE).write_text(digest, encoding="utf-8")
