"""Image classification: one label per image (paper, section 4.4 and table of ImageNet)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.batch import mixed_order
from magneto.data.frequencies import count_numbers, frequency_nats, warn_unlearnt
from magneto.data.stream import BatchStream
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, Figure, Loss, Scores
from magneto.vision.batches import evaluation_images, training_stream
from magneto.vision.classification.config import (
    ImageClassificationDataConfig,
    ImageClassifierConfig,
    given_names,
)
from magneto.vision.classification.figures import (
    attention_figure,
    collect_answers,
    confusion_figure,
    mistakes_figure,
)
from magneto.vision.classification.model import ImageClassifier
from magneto.vision.classification.scores import BINS, answer_sums, classification_scores
from magneto.vision.decoding import Picture
from magneto.vision.image_task import ImageTask
from magneto.vision.images import UNLABELLED, ImageSplits, load_images
from magneto.vision.layer_decay import layer_decay_multipliers
from magneto.vision.mixing import PairMixing
from magneto.vision.prediction import Prediction, class_predictions
from magneto.vision.pretrained import encoder_weights, pretrained_run
from magneto.vision.transforms import Reading, training_transform, validation_transform
from magneto.weights import StoredTensor


class ImageClassification(ImageTask):
    """Labelled images, an `ImageClassifier`, cross-entropy in nats per image."""

    primary_metric = "accuracy"
    higher_is_better = True
    evaluation_batch = 256

    model_config: ImageClassifierConfig
    data_config: ImageClassificationDataConfig

    @cached_property
    def splits(self) -> ImageSplits:
        """Training and validation images, their labels numbered as `names` are."""
        data = replace(self.data_config, classes=given_names(self.data_config))
        return load_images(data, self.seed, self._progress, self.problems)

    @cached_property
    def names(self) -> list[str]:
        """Names of the classes, in the order of their numbers."""
        return list(given_names(self.data_config) or self.splits.classes)

    @cached_property
    def candidates(self) -> Tensor:
        """Added to validation logits, (classes): -inf where a class is no candidate."""
        size, present = self.model_config.classes, self.splits.validation.labels_of()
        if self.data_config.candidates == "all":
            return torch.zeros(size)
        return torch.full((size,), -torch.inf).index_fill(0, torch.from_numpy(present), 0.0)

    def prepare(self, progress: Progress = SILENT) -> None:
        """List the images; see that model, data and the run to begin with fit together.

        Raises:
            ValueError: If they don't.
        """
        fresh = "splits" not in self.__dict__
        super().prepare(progress)
        splits, where = self.splits, self.data_config.source
        classes, known = len(splits.classes), self.model_config.classes
        parts = (splits.train, splits.validation)
        lacking = sum(int((part.labels_of() == UNLABELLED).sum()) for part in parts)
        if lacking:
            raise ValueError(f"{where} has {lacking} images without a label; a folder per class "
                             "gives them one, for example")  # fmt: skip
        if known < classes:
            raise ValueError(f"{where} has {classes} classes, the model {known}: set model.classes")
        if self.model_config.pretrained and fresh:
            self.initial_weights()
            warn_unlearnt(pretrained_run(self.model_config), progress)

    def build_model(self) -> ImageClassifier:
        """Build the model; the encoder of another run is in `initial_weights`."""
        return ImageClassifier(self.model_config)

    def initial_weights(self) -> dict[str, StoredTensor]:
        """Return patches, positions and encoder of another run, if one is named."""
        if not self.model_config.pretrained:
            return {}
        with torch.device("meta"):
            model = self.build_model()
        return encoder_weights(model, self.model_config)

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        """Return the layer-wise decay of the learning rate."""
        config = self.model_config
        return layer_decay_multipliers(model, config.layers, config.layer_decay)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images in random order, augmented, with soft targets; pairs are mixed."""
        data, config = self.data_config, self.model_config
        transform = training_transform(data, self.reading)
        mixing = PairMixing(seed, data.mixup, data.cutmix, config.classes, config.label_smoothing)
        repeats = data.augmentation.repeats
        return training_stream(self.splits.train, transform, batch_size, seed, repeats, mixing)

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return black images of the first class."""
        targets = torch.zeros(examples, self.model_config.classes)
        labels = torch.zeros(examples, dtype=torch.long)
        return {**super().dummy_batch(examples), "targets": targets, "labels": labels}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the objective over images.

        Logged with it: "accuracy" by the images' own labels, and "broken", the share of images that
        could not be read, in whose place others stand.
        """
        logits, targets = model(batch["images"]).float(), batch["targets"]
        objective = {
            "cross_entropy": F.cross_entropy,
            "binary_cross_entropy": F.binary_cross_entropy_with_logits,
        }[self.model_config.objective]
        right = (logits.detach().argmax(-1) == batch["labels"]).sum()
        logs = {"accuracy": right, "broken": batch["broken"].sum()}
        count = torch.ones_like(batch["labels"]).sum()
        return Loss(objective(logits, targets, reduction="sum"), count, logs)

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        """Return the validation images, in mixed order."""
        transform = validation_transform(self.data_config, self.reading)
        return evaluation_images(
            self.splits.validation, transform, self.evaluation_batch, self.reading.blank
        )

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Sum the cross-entropy; count right answers, the best five, and bins of confidence."""
        logits = model(batch["images"]).float() + self.candidates.to(batch["images"].device)
        sums = answer_sums(logits, batch["labels"], batch["broken"])
        loss = F.cross_entropy(logits, batch["labels"], reduction="sum")
        return Scores({**sums, "loss": loss})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss, accuracy, the best five's accuracy and the calibration error."""
        return classification_scores(sums, self.model_config.classes)

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the classes' frequencies and the accuracy of the commonest."""
        size, held = self.model_config.classes, self.splits.validation
        order = mixed_order(len(held))[: limit and limit * self.evaluation_batch]
        train = count_numbers(self.splits.train.labels_of(), size)
        asked = count_numbers(held.labels_of(order), size)
        five = np.argsort(-train, kind="stable")[:5]
        nats, count = frequency_nats(train, asked), float(asked.sum())
        right, several = float(asked[train.argmax()]), float(asked[five].sum())
        bins = [[count, train.max() / train.sum() * count, right]] + [[0.0] * 3] * (BINS - 1)
        return self.summarise(
            {"loss": nats, "right": right, "right_in_five": several, "count": count, "bins": bins,
             "broken": 0}, ()
        )  # fmt: skip

    def predict(self, model: nn.Module, pictures: Sequence[Picture]) -> list[Prediction]:
        """Return the classes of images, the likeliest first.

        Args:
            model: With a run's weights, in evaluation mode.
            pictures: That can be decoded.
        """
        config = self.model_config
        reading = Reading(config.image_size, config.channels, self.data_config.normalisation)
        transform = validation_transform(self.data_config, reading)
        random = np.random.default_rng(0)
        images = torch.from_numpy(np.stack([transform(p, random) for p in pictures]))
        return class_predictions(model, images, self.names)

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write what names the content of the data; the classes are told by it."""
        digest = f"{self.splits.train.digest} {self.splits.validation.digest}"
        (directory / DIGEST_FILE).write_text(digest, encoding="utf-8")
        # A file of names may be another one later; so may the run that this one began with.
        named = {"data.classes": self.names, "data.class_names": None}
        return {**named, "model.pretrained": None}


def figures(task: ImageClassification, model: nn.Module) -> Sequence[Figure]:
    """Return which classes are confused, the surest mistakes, where the last layer looks.

    There are none where the first images are all broken.
    """
    found = collect_answers(model, task.validation_batches(), task.candidates)
    if not len(found.images):
        return []
    return [
        confusion_figure(found.counts, task.names),
        mistakes_figure(found.mistakes, task.names, task.reading),
        attention_figure(model, found.images, task.reading),
    ]
