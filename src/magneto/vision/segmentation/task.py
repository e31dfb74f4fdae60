"""Semantic segmentation: a class for every pixel of an image (paper, table of ADE20k)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.batch import mixed_order
from magneto.data.frequencies import frequency_nats, warn_unlearnt
from magneto.data.stream import BatchStream
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, Figure, Loss, Scores, Task
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.images import ImageSplit, ImageSplits, load_images
from magneto.vision.layer_decay import layer_decay_multipliers
from magneto.vision.paired_transforms import PairedAugmentation
from magneto.vision.prediction import Prediction
from magneto.vision.pretrained import encoder_weights, pretrained_run
from magneto.vision.segmentation.config import IGNORED, SegmentationDataConfig, SegmenterConfig
from magneto.vision.segmentation.data import (
    MaskReading,
    black_pairs,
    evaluation_pairs,
    read_pair,
    training_pairs,
)
from magneto.vision.segmentation.figures import confusion_figure, overlay_figure
from magneto.vision.segmentation.heads import resize
from magneto.vision.segmentation.inference import pixel_logits, segment
from magneto.vision.segmentation.model import Segmenter
from magneto.vision.segmentation.overlay import overlay_png
from magneto.vision.segmentation.scores import confusion, segmentation_scores
from magneto.vision.transforms import Reading
from magneto.weights import StoredTensor

EVALUATION_BATCH = 8
# Masks that the baseline, and the check of a source, read.
COUNTED, CHECKED = 500, 8
# Validation images that figures are made of, and those that are drawn.
SHOWN, OVERLAYS = 32, 4


class Segmentation(Task):
    """Images with masks, a `Segmenter`, cross-entropy in nats per pixel."""

    primary_metric = "mean_iou"
    higher_is_better = True
    unit = "images"
    whole_model = "segmentation runs the model as often as an image's size asks for"
    model_config: SegmenterConfig
    data_config: SegmentationDataConfig

    def __init__(self, model: SegmenterConfig, data: SegmentationDataConfig, seed: int) -> None:
        super().__init__(model, data, seed)
        self._progress: Progress = SILENT

    @cached_property
    def splits(self) -> ImageSplits:
        """Training and validation images."""
        return load_images(self.data_config.images, self.seed, self._progress, self.problems)

    @cached_property
    def names(self) -> list[str]:
        """Names of the classes, in the order of their numbers; numbers where there are none."""
        given = list(self.data_config.classes or self.splits.classes)
        return given or [str(number) for number in range(self.model_config.classes)]

    @cached_property
    def masks(self) -> MaskReading:
        """What the numbers in masks mean."""
        data = self.data_config
        return MaskReading(self.model_config.classes, data.reduce_zero_label, data.ignored)

    @cached_property
    def reading(self) -> Reading:
        """The form in which the model reads images."""
        size, channels = self.model_config.image_size, self.model_config.channels
        return Reading(size, channels, self.data_config.normalisation)

    def prepare(self, progress: Progress = SILENT) -> None:
        """List the images; see that model, data and the run to begin with fit together.

        Raises:
            ValueError: If they don't.
        """
        if "splits" in self.__dict__:
            return
        self._progress = progress
        where, splits = self.data_config.source, self.splits
        progress.say(f"{where}: {splits.describe()}")
        for split in (splits.train, splits.validation):
            if not split.has_masks:
                raise ValueError(f"{where} has no masks: see docs/concepts/segmentation.md")
        if len(self.names) != self.model_config.classes:
            raise ValueError(f"{where} has {len(self.names)} classes, the model "
                             f"{self.model_config.classes}: set model.classes")  # fmt: skip
        self._check_masks(splits.train)
        if self.model_config.pretrained:
            self.initial_weights()
            warn_unlearnt(pretrained_run(self.model_config), progress)

    def _check_masks(self, split: ImageSplit) -> None:
        """Read a few pairs; see that not all are broken."""
        problem = ""
        for index in mixed_order(len(split))[:CHECKED].tolist():
            try:
                read_pair(split, index, self.masks)
                return
            except BrokenImage as error:
                problem = f"{split.name(index)} {error}"
        raise ValueError(f"no pair of image and mask can be read: {problem}")

    def build_model(self) -> Segmenter:
        """Build the model; the encoder of another run is in `initial_weights`."""
        return Segmenter(self.model_config)

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
        """Return crops of images in random order, augmented."""
        transform = PairedAugmentation(self.reading, self.data_config.augmentation)
        return training_pairs(self.splits.train, self.masks, transform, batch_size, seed)

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return black images whose pixels are all of the first class."""
        return black_pairs(self.model_config, examples)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy of both heads over all pixels that have a class.

        "pixel_accuracy" is logged with it, and "broken", the share of these pixels that are of
        images in the place of others that could not be read.
        """
        masks, broken = batch["masks"].long(), batch["broken"][:, None, None]
        known = masks != IGNORED
        found = model(batch["images"])
        logits, auxiliary = (resize(x.float(), masks.shape[1:]) for x in found)
        weight = self.model_config.auxiliary_weight
        total = pixel_loss(logits, masks) + weight * pixel_loss(auxiliary, masks)
        right = (logits.detach().argmax(1) == masks).sum()
        logs = {"pixel_accuracy": right, "broken": (known & broken).sum()}
        return Loss(total, known.sum(), logs)

    def validation_batches(self) -> Sequence[dict[str, Any]]:
        """Return the validation images and their masks, in mixed order."""
        held = self.splits.validation
        return evaluation_pairs(held, self.masks, self.data_config, self.reading, EVALUATION_BATCH)

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        """Count pixels by class and answer, and sum the cross-entropy, at the masks' size."""
        assert isinstance(model, Segmenter)
        counts, loss = [], []
        for logits, mask in zip(pixel_logits(model, batch["images"]), batch["masks"], strict=True):
            logits = resize(logits[None], mask.shape)
            loss.append(pixel_loss(logits, mask[None].long()))
            counts.append(confusion(mask, logits[0].argmax(0), self.model_config.classes))
        return Scores({
            "confusion": torch.stack(counts).sum(0),
            "loss": torch.stack(loss).sum(),
            "broken": batch["broken"].sum(),
        })  # fmt: skip

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss per pixel and the scores of all pixels; "broken" images, if any."""
        found = segmentation_scores(sums["confusion"], self.names)
        loss = sums["loss"] / np.sum(sums["confusion"])
        return {"loss": float(loss)} | found | ({"broken": b} if (b := sums["broken"]) else {})

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the classes' frequencies and the scores of the commonest class."""
        held = mixed_order(len(self.splits.validation))[: limit and limit * EVALUATION_BATCH]
        train = mixed_order(len(self.splits.train))[:COUNTED]
        common = self._count(self.splits.train, train)
        asked = self._count(self.splits.validation, held)
        matrix = np.zeros((len(asked), len(asked)))
        matrix[:, common.argmax()] = asked
        nats = frequency_nats(common, asked)
        return self.summarise({"confusion": matrix, "loss": nats, "broken": 0}, ())

    def _count(self, split: ImageSplit, indices: np.ndarray) -> np.ndarray:
        """Count the pixels of each class in some masks."""
        counts = np.zeros(256, np.int64)
        for index in indices.tolist():
            try:
                counts += np.bincount(self.masks(split.mask(index)).ravel(), minlength=256)
            except BrokenImage:
                continue
        return counts[: self.model_config.classes]

    def segment(self, model: nn.Module, pixels: np.ndarray) -> np.ndarray:
        """Return the class of each pixel of an image.

        Args:
            model: With a run's weights, in evaluation mode.
            pixels: uint8 (height, width, channels).

        Returns:
            uint8 (height, width): indices of `names`.
        """
        assert isinstance(model, Segmenter)
        return segment(model, pixels, self.reading, self.data_config.fit)

    def predict(self, model: nn.Module, pictures: Sequence[Picture]) -> list[Prediction]:
        """Return which classes images show, and pictures of them with a legend."""
        return [self._prediction(model, picture.pixels()) for picture in pictures]

    def _prediction(self, model: nn.Module, pixels: np.ndarray) -> Prediction:
        classes = self.segment(model, pixels)
        shares = np.bincount(classes.ravel(), minlength=len(self.names)) / classes.size
        labels = [(self.names[n], float(shares[n])) for n in np.argsort(-shares) if shares[n]]
        return Prediction(labels, {"segmentation": overlay_png(pixels, classes, self.names)})

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write what names the content of the data; the classes are told by it."""
        digest = f"{self.splits.train.digest} {self.splits.validation.digest}"
        (directory / DIGEST_FILE).write_text(digest, encoding="utf-8")
        return {"data.classes": self.names, "model.pretrained": None}


def pixel_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Sum the cross-entropy of (batch, classes, height, width) over pixels that have a class."""
    return F.cross_entropy(logits, masks, ignore_index=IGNORED, reduction="sum")


def figures(task: Segmentation, model: nn.Module) -> Sequence[Figure]:
    """Return validation images with what was found in them, and the confusion of classes."""
    held, classes, found = task.splits.validation, task.model_config.classes, []
    total = torch.zeros(classes, classes, dtype=torch.long)
    for index in mixed_order(len(held))[:SHOWN].tolist():
        try:
            pixels, mask = read_pair(held, index, task.masks)
        except BrokenImage:
            continue
        answer = task.segment(model, pixels)
        total += confusion(torch.from_numpy(mask), torch.from_numpy(answer).long(), classes)
        if len(found) < OVERLAYS:
            found.append(overlay_figure(held.name(index), pixels, mask, answer, task.names))
    return [*found, confusion_figure(total.numpy(), task.names)] if total.any() else found
