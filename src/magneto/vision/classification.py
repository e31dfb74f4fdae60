"""Image classification: one label per image (paper, section 4.4 and ImageNet table).

Pairs of training images can be mixed by mixup (arXiv 1710.09412) or CutMix (arXiv 1905.04899).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.stream import evaluation_order
from magneto.functional.cross_entropy import count_numbers, frequency_sums
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.batches import Finish
from magneto.vision.config import ImageClassificationDataConfig, ImageClassifierConfig, given_names
from magneto.vision.decoding import Picture
from magneto.vision.image_task import FineTuning, Prediction, ranked
from magneto.vision.images import UNLABELLED, ImageSplits, load_images
from magneto.vision.models import ImageClassifier
from magneto.vision.transforms import validation_transform

# Bins of the expected calibration error, of equal width (arXiv 1706.04599).
BINS = 15
# Validation batches of the figures, and number of mistakes in the figure of mistakes.
FIGURE_BATCHES, MISTAKES = 16, 12


Mixing = tuple[float, tuple[slice, slice] | None]
"""How to mix a pair of images: a weight and a box. An image's mixed target is weight * own target +
(1 - weight) * target of the other image. CutMix swaps a box of rows and columns between the two
images. For mixup, the box is None."""


def draw_mixing(
    random: np.random.Generator, mixup: float, cutmix: float, height: int, width: int
) -> Mixing:
    """Choose at random how to mix a pair of images.

    `mixup` and `cutmix` are the alphas of Beta distributions; 0 turns a method off. If mixup and
    CutMix are both on, each is chosen with probability 0.5.
    """
    if not mixup and not cutmix:
        return 1.0, None
    cuts = random.random() < 0.5 if mixup and cutmix else bool(cutmix)
    alpha = cutmix if cuts else mixup
    share = float(random.beta(alpha, alpha))
    if not cuts:
        return share, None
    high, wide = int(height * math.sqrt(1 - share)), int(width * math.sqrt(1 - share))
    row, column = int(random.integers(height)), int(random.integers(width))
    top, bottom = max(0, row - high // 2), min(height, row + high // 2)
    left, right = max(0, column - wide // 2), min(width, column + wide // 2)
    # The edge of the image may cut the box, so the share is counted in the pixels that stay.
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return share, (slice(top, bottom), slice(left, right))


def mixed(images: Tensor, targets: Tensor, how: Sequence[Mixing]) -> tuple[Tensor, Tensor]:
    """Mix images 0 and 1, 2 and 3, and so on; a single image at the end does not change.

    `targets` are probabilities, (batch, classes). Item i of `how` says how the images of pair i are
    mixed. Surplus items are not used.
    """
    images, targets = images.clone(), targets.clone()
    for pair, (share, box) in enumerate(how[: len(images) // 2]):
        rows = slice(2 * pair, 2 * pair + 2)
        targets[rows] = targets[rows].lerp(targets[rows].flip(0), 1 - share)
        if box is None:
            images[rows] = images[rows].lerp(images[rows].flip(0), 1 - share)
        else:
            part = (rows, slice(None), *box)
            images[part] = images[part].flip(0)
    return images, targets


def answer_sums(logits: Tensor, labels: Tensor, broken: Tensor) -> dict[str, Tensor]:
    """Return counts and sums of a batch, from which `classification_scores` computes metrics.

    Logits are float32 (batch, classes), with -inf for a class that is not a candidate. A broken
    image counts as wrong.
    """
    best = logits.topk(min(5, logits.shape[1]), 1).indices
    hits = (best == labels[:, None]) & ~broken[:, None]
    confidence = logits.softmax(1).amax(1)
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    count = torch.ones_like(labels)
    per_bin = torch.stack((count, confidence, hits[:, 0]), 1).double()
    bins = torch.zeros(BINS, 3, dtype=torch.float64, device=logits.device)
    return {
        "right": hits[:, 0].sum(),
        "right_in_five": hits.any(1).sum(),
        "count": count.sum(),
        "broken": broken.sum(),
        "bins": bins.index_add(0, place, per_bin),
    }


def classification_scores(sums: Mapping[str, Any], classes: int) -> dict[str, float]:
    """Return the metrics of a data set.

    `sums` has the results of `answer_sums`, added up over all batches. The entry "loss" is the sum
    of the losses.

    Returns:
        "loss", "accuracy", and "calibration_error", which is the expected calibration error with 15
        bins. With more than five classes, the result has "accuracy_top5" too. If some images are
        broken, "broken" is the number of broken images.
    """
    count = sums["count"]
    found = {"loss": sums["loss"] / count, "accuracy": sums["right"] / count}
    if classes > 5:
        found["accuracy_top5"] = sums["right_in_five"] / count
    gaps = (abs(confidence - right) for _, confidence, right in sums["bins"])
    found["calibration_error"] = sum(gaps) / count
    return found | ({"broken": sums["broken"]} if sums["broken"] else {})


class ImageClassification(FineTuning):
    """Image classification with an `ImageClassifier`; the loss is in nats per image."""

    primary_metric = "accuracy"
    higher_is_better = True
    evaluation_batch = 256

    model_config: ImageClassifierConfig
    data_config: ImageClassificationDataConfig

    @cached_property
    def splits(self) -> ImageSplits:
        data = replace(self.data_config, classes=given_names(self.data_config))
        return load_images(data, self.seed, self._progress, self.problems)

    @cached_property
    def names(self) -> list[str]:
        """Names of the classes, in the order of their numbers."""
        return list(given_names(self.data_config) or self.splits.classes)

    @property
    def classes(self) -> int:
        """Number of classes: `model.classes`, or else the number of class names."""
        return self.model_config.classes or len(self.names)

    @cached_property
    def candidates(self) -> Tensor:
        """Values (classes,) to add to validation logits: -inf for excluded classes, else 0."""
        size, present = self.classes, self.splits.validation.labels_of()
        if self.data_config.candidates == "all":
            return torch.zeros(size)
        return torch.full((size,), -torch.inf).index_fill(0, torch.from_numpy(present), 0.0)

    def check(self) -> None:
        super().check()
        splits, where = self.splits, self.data_config.source
        classes, known = len(splits.classes), self.classes
        parts = (splits.train, splits.validation)
        lacking = sum(int((part.labels_of() == UNLABELLED).sum()) for part in parts)
        if lacking:
            raise ValueError(f"{where} has {lacking} images without a label: put each class "
                             "into a separate folder, or use a table that has a label for every "
                             "image")  # fmt: skip
        if classes == 1:
            raise ValueError(f"{where} has only one class, {splits.classes[0]}: set data.source "
                             "to a folder with a folder for each class, or to a table")  # fmt: skip
        if known < classes:
            raise ValueError(f"{where} has {classes} classes, but model.classes is {known}: do not "
                             "set model.classes")  # fmt: skip
        self.check_pretrained()

    def build_model(self) -> ImageClassifier:
        return ImageClassifier(replace(self.model_config, classes=self.classes))

    def finish(self, seed: int) -> Finish:
        """Return a function that adds soft "targets" to a batch and mixes pairs of images."""
        data, smoothing = self.data_config, self.model_config.label_smoothing

        # The workers call this: on a GPU, mixing takes hundreds of small operations.
        def mix(
            batch: dict[str, Tensor], numbers: np.ndarray, draws: np.ndarray
        ) -> dict[str, Tensor]:
            one_hot = F.one_hot(batch["labels"], self.classes).float()
            images = batch["images"]
            targets = one_hot * (1 - smoothing) + smoothing / self.classes
            if data.mixup or data.cutmix:
                keys = zip(draws[::2].tolist(), numbers[::2].tolist(), strict=True)
                randoms = (np.random.default_rng([seed, *key, 0, 1]) for key in keys)
                how = [draw_mixing(r, data.mixup, data.cutmix, *images.shape[2:]) for r in randoms]
                images, targets = mixed(images, targets, how)
            return {**batch, "images": images, "targets": targets}

        return mix

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        targets = torch.zeros(examples, self.classes)
        labels = torch.zeros(examples, dtype=torch.long)
        return {**super().dummy_batch(examples), "targets": targets, "labels": labels}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Return the loss summed over images.

        The logged "accuracy" compares predictions with the labels before mixing. The logged
        "broken" is the share of images that had to be replaced, because they are unreadable.
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

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        logits = model(batch["images"]).float() + self.candidates.to(batch["images"].device)
        sums = answer_sums(logits, batch["labels"], batch["broken"])
        loss = F.cross_entropy(logits, batch["labels"], reduction="sum")
        return Scores({**sums, "loss": loss})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        return classification_scores(sums, self.classes)

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        size, held = self.classes, self.splits.validation
        order = evaluation_order(len(held))[: limit and limit * self.evaluation_batch]
        train = count_numbers(self.splits.train.labels_of(), size)
        asked = count_numbers(held.labels_of(order), size)
        five = np.argsort(-train, kind="stable")[:5]
        found = frequency_sums(train, asked)
        count, confidence = found["count"], train.max() / train.sum()
        bins = [[count, confidence * count, found["right"]]] + [[0.0] * 3] * (BINS - 1)
        more = {"right_in_five": float(asked[five].sum()), "bins": bins, "broken": 0}
        return self.summarise(found | more, ())

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[Picture]) -> list[Prediction]:
        """Return the classes of images with their probabilities, the most probable first."""
        transform = validation_transform(self.data_config, self.input_format_of())
        random = np.random.default_rng(0)
        images = torch.from_numpy(np.stack([transform(p, random) for p in inputs]))
        logits = model(images.to(next(model.parameters()).device)).float().cpu()
        # Classes without a name are called by their numbers.
        names = [*self.names, *map(str, range(len(self.names), logits.shape[1]))]
        return ranked(names, logits.softmax(1))

    def save_assets(self, directory: Path) -> dict[str, Any]:
        # The file of names and the pre-trained run may change later.
        named = {"data.classes": self.names, "data.class_names": None, "model.pretrained": None}
        return super().save_assets(directory) | named


@torch.no_grad()
def figures(task: ImageClassification, model: Any) -> Sequence[Figure]:
    from magneto.vision import figures as drawn

    batches = task.validation_batches()
    images, labels = drawn.readable(batches, FIGURE_BATCHES, "images", "labels")
    if not len(images):
        return []
    device, pieces = next(model.parameters()).device, images.split(task.evaluation_batch)
    logits = torch.cat([model(piece.to(device)).float().cpu() for piece in pieces])
    sure, answers = (logits + task.candidates).softmax(1).max(1)
    counts = np.zeros((task.classes,) * 2, int)
    np.add.at(counts, (labels.numpy(), answers.numpy()), 1)
    found = [drawn.confusion_figure(counts, task.names, "images")]
    wrong = (answers != labels).nonzero()[:, 0]
    surest = wrong[sure[wrong].argsort(descending=True, stable=True)][:MISTAKES]
    if len(surest):
        words = [
            f"label {drawn.short(task.names, int(labels[row]))}\n"
            f"model {drawn.short(task.names, int(answers[row]))}, {float(sure[row]):.0%}"
            for row in surest
        ]
        found.append(drawn.mistakes_figure(images[surest], words, task.input_format))
    some = images[: drawn.IMAGES]
    seen = torch.from_numpy(np.stack([task.input_format.restore(image.numpy()) for image in some]))
    seen = seen.permute(0, 3, 1, 2) / 127.5 - 1
    return [*found, drawn.attention_figure(model, some, seen, model.pooled)]
