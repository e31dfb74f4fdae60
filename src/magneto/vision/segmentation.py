"""Semantic segmentation: a class for every pixel of an image (paper, ADE20k table)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.problems import join_words
from magneto.data.stream import LazyBatches, evaluation_order, evaluation_plans
from magneto.data.table import evenly_spaced
from magneto.functional.cross_entropy import frequency_sums
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.augmentation import PairedAugmentation
from magneto.vision.batches import read_image
from magneto.vision.config import IGNORED, SegmentationDataConfig, SegmenterConfig
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.image_task import FineTuning, Prediction
from magneto.vision.images import ImageSplit
from magneto.vision.models import Segmenter, classes_of, pixel_logits, resize
from magneto.vision.transforms import resize_to_fit

# Masks read by the baseline, the check of a source, and the search for its classes.
COUNTED, CHECKED, SAMPLE = 500, 8, 2000
ONE_CLASS = ("the masks have no class except 0, and 255 is always ignored: write the classes as "
             "0, 1, 2, ..., for example 1 in place of 255")  # fmt: skip
# Numbers that a message shows.
FEW = 5
# Validation images counted in figures, and those drawn.
SHOWN, OVERLAYS = 32, 4


class MaskClasses:
    """Mapping from the numbers in masks to classes.

    For `reduce_zero_label` and `ignored`, see `SegmentationDataConfig`.
    """

    def __init__(
        self, classes: int, reduce_zero_label: bool = False, ignored: Sequence[int] = ()
    ) -> None:
        self.classes, found = classes, np.arange(256)
        if reduce_zero_label:
            found = np.where(found == IGNORED, IGNORED, (found - 1) % 256)
        found[list(ignored)] = IGNORED
        self.table = found.astype(np.uint8)

    def __call__(self, stored: np.ndarray) -> np.ndarray:
        """Convert a stored mask to classes; ignored pixels become `IGNORED`. Both are uint8.

        Raises:
            BrokenImage: If the mask has an unknown class.
        """
        found = self.table[stored]
        unknown = stored[(found >= self.classes) & (found != IGNORED)]
        if unknown.size:
            raise BrokenImage(
                f"its mask has the number {unknown[0]}, but the {self.classes} classes are "
                f"numbered from 0: set a larger model.classes, or add {unknown[0]} to data.ignored"
            )
        return found


def read_pair(split: ImageSplit, index: int, masks: MaskClasses) -> tuple[np.ndarray, np.ndarray]:
    """Return an image's pixels (height, width, channels) and their classes (height, width).

    Raises:
        BrokenImage: If the image or the mask can't be read, or if their sizes differ.
    """
    pixels, mask = split.pixels(index), masks(split.mask(index))
    if pixels.shape[:2] != mask.shape:
        size, other = (" x ".join(map(str, found.shape[:2])) for found in (pixels, mask))
        raise BrokenImage(f"its size is {size}, but its mask is {other}")
    return pixels, mask


def count_pixels(
    split: ImageSplit, indices: np.ndarray, read: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Count the pixels of each value in the masks at `indices`.

    `read` converts a stored mask to the values to count. The counts are int64 (256,).
    """
    counts = np.zeros(256, np.int64)
    for index in indices.tolist():
        with suppress(BrokenImage):
            counts += np.bincount(read(split.mask(index)).ravel(), minlength=256)
    return counts


def mask_numbers(splits: Sequence[ImageSplit], masks: MaskClasses) -> np.ndarray:
    """Return the numbers that occur in masks, in ascending order, without ignored numbers.

    At most `SAMPLE` masks of each split are read.

    Raises:
        ValueError: If the masks have no class but 0.
    """
    counts = [count_pixels(s, evenly_spaced(len(s), SAMPLE), lambda mask: mask) for s in splits]
    numbers = np.flatnonzero(np.any(counts, 0) & (masks.table != IGNORED))
    if not masks.table[numbers].any():
        raise ValueError(ONE_CLASS)
    return numbers


def sparse_numbers(numbers: np.ndarray, classes: int) -> str:
    """Return a warning if at least half of the classes are missing in the masks, else ""."""
    if 2 * len(numbers) > classes:
        return ""
    shown = join_words(numbers.tolist(), FEW)
    return (f"WARNING: the masks have only {len(numbers)} of the {classes} classes from 0 "
            f"to {classes - 1} ({shown}): write the classes as 0, 1, 2, ... in the masks, "
            "or list ignored numbers in data.ignored")  # fmt: skip


def confusion(labels: Tensor, answers: Tensor, classes: int) -> Tensor:
    """Return a confusion matrix of pixels, int64 (classes, classes).

    `labels` are the true classes, or `IGNORED`. `answers` are the predicted classes, shaped like
    `labels`. A row counts the pixels of one true class. The host does not wait for the device.
    """
    pair = labels.long() * classes + answers
    last = torch.full_like(pair, classes * classes)
    cells = torch.where(labels == IGNORED, last, pair).flatten()
    counts = torch.zeros(classes * classes + 1, dtype=torch.long, device=cells.device)
    return counts.index_add_(0, cells, torch.ones_like(cells))[:-1].view(classes, classes)


def segmentation_scores(
    matrix: Sequence[Sequence[float]], names: Sequence[str]
) -> dict[str, float]:
    """Return the metrics of a confusion matrix, which is the sum of `confusion` over a data set.

    Returns:
        "iou_NAME" is the intersection over union of a class, for each class that occurs or is
        predicted. "mean_iou" is the mean over these classes. "pixel_accuracy" is the share of
        correctly classified pixels. "mean_accuracy" is the accuracy of each class, averaged over
        the classes that occur.

    Raises:
        ValueError: If no pixel has a class.
    """
    counts = np.asarray(matrix, np.float64)
    if not counts.sum():
        raise ValueError("all pixels of the masks are ignored: none has a class")
    right, labelled, answered = counts.diagonal(), counts.sum(1), counts.sum(0)
    union = labelled + answered - right
    known = union > 0
    iou = right[known] / union[known]
    return {
        "mean_iou": float(iou.mean()),
        "pixel_accuracy": float(right.sum() / counts.sum()),
        "mean_accuracy": float((right[labelled > 0] / labelled[labelled > 0]).mean()),
        **{
            f"iou_{name}": float(value)
            for name, value in zip(np.array(names, object)[known], iou, strict=True)
        },
    }


class Segmentation(FineTuning):
    """Semantic segmentation with a `Segmenter`; the loss is in nats per pixel."""

    primary_metric = "mean_iou"
    higher_is_better = True
    whole_model = "the model runs several times on a large image"
    evaluation_batch = 8

    model_config: SegmenterConfig
    data_config: SegmentationDataConfig

    @cached_property
    def names(self) -> list[str]:
        """Names of the classes in the order of the class numbers.

        If the data have no class names, the class numbers are the names.
        """
        given = list(self.data_config.classes or self.splits.classes)
        return given or [str(number) for number in range(self.classes)]

    @cached_property
    def classes(self) -> int:
        data = self.data_config
        if self.model_config.classes is not None:
            return self.model_config.classes
        if known := data.classes or self.splits.classes:
            return len(known)
        masks = MaskClasses(IGNORED, data.reduce_zero_label, data.ignored)
        self._check_masks(self.splits.train, masks)
        numbers = mask_numbers((self.splits.train, self.splits.validation), masks)
        classes = int(masks.table[numbers].max()) + 1
        if warning := sparse_numbers(numbers, classes):
            self._progress.say(warning)
        return classes

    @cached_property
    def masks(self) -> MaskClasses:
        data = self.data_config
        return MaskClasses(self.classes, data.reduce_zero_label, data.ignored)

    def check(self) -> None:
        where, splits = self.data_config.source, self.splits
        held = self.data_config.validation_source or where
        for source, name, split in ((where, "train", splits.train),
                                    (held, "validation", splits.validation)):  # fmt: skip
            if not split.has_masks:
                raise ValueError(f"{source}: the {name} split has no masks; see "
                                 "docs/fields/segmentation.md")  # fmt: skip
        if len(self.names) != self.classes:
            raise ValueError(f"{where} has {len(self.names)} classes, but model.classes is "
                             f"{self.classes}: set model.classes to {len(self.names)} or "
                             "null")  # fmt: skip
        if self.model_config.classes is None:
            self._progress.say(f"{self.classes} classes, from the data")
        self._check_masks(splits.train, self.masks)
        self.check_pretrained()

    def _check_masks(self, split: ImageSplit, masks: MaskClasses) -> None:
        problem = ""
        for index in evaluation_order(len(split))[:CHECKED].tolist():
            try:
                read_pair(split, index, masks)
                return
            except BrokenImage as error:
                problem = f"{split.name(index)}: {error}"
        raise ValueError(f"every image-mask pair that was tried is broken, for example {problem}")

    def build_model(self) -> Segmenter:
        return Segmenter(replace(self.model_config, classes=self.classes))

    @cached_property
    def augmentation(self) -> PairedAugmentation:
        data = self.data_config
        return PairedAugmentation(self.input_format, data.augmentation, data.fit)

    def example(self, index: int, random: np.random.Generator) -> dict[str, Any]:
        pixels, mask = read_pair(self.splits.train, index, self.masks)
        image, mask = self.augmentation(pixels, mask, random)
        return {"images": image, "masks": mask}

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        side = self.model_config.input_sizes[0]
        masks = torch.zeros(examples, side, side, dtype=torch.uint8)
        return {**super().dummy_batch(examples), "masks": masks}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Return the weighted sum of both heads' losses over all pixels with a class.

        Unreadable images are replaced by other images. The logged "broken" is the share of
        labelled pixels that belong to such replacements.
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

    def validation_batches(self) -> LazyBatches:
        """Return batches of validation images in a fixed random order.

        A batch has the lists "images" and "masks", and "broken", which marks unreadable images.
        Images are resized to fit into `data.fit`. Masks are not resized, because the scores use the
        masks' own sizes. A blank image replaces an unreadable image, and all of its pixels are
        ignored.
        """
        held, input_format = self.splits.validation, self.input_format
        blank = input_format.blank, np.full(input_format.blank.shape[1:], IGNORED, np.uint8)

        def pair(row: int) -> tuple[np.ndarray, np.ndarray]:
            pixels, mask = read_pair(held, row, self.masks)
            return input_format.normalise(resize_to_fit(pixels, self.data_config.fit)), mask

        def make(rows: np.ndarray) -> dict[str, list[Tensor] | Tensor]:
            read = [read_image(partial(pair, row), blank, partial(held.broken, row))
                    for row in rows.tolist()]  # fmt: skip
            pairs, broken = zip(*read, strict=True)
            images, masks = zip(*pairs, strict=True)
            lists = {"images": images, "masks": masks}
            found = {name: [torch.from_numpy(x) for x in values] for name, values in lists.items()}
            return {**found, "broken": torch.tensor(broken)}

        return LazyBatches(evaluation_plans(len(held), self.evaluation_batch), make)

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        assert isinstance(model, Segmenter)
        counts, loss = [], []
        for logits, mask in zip(pixel_logits(model, batch["images"]), batch["masks"], strict=True):
            logits = resize(logits[None], mask.shape)
            loss.append(pixel_loss(logits, mask[None].long()))
            counts.append(confusion(mask, logits[0].argmax(0), self.classes))
        return Scores({
            "confusion": torch.stack(counts).sum(0),
            "loss": torch.stack(loss).sum(),
            "broken": batch["broken"].sum(),
        })  # fmt: skip

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        found = segmentation_scores(sums["confusion"], self.names)
        loss = sums["loss"] / np.sum(sums["confusion"])
        return {"loss": float(loss)} | found | ({"broken": b} if (b := sums["broken"]) else {})

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        held = evaluation_order(len(self.splits.validation))[
            : limit and limit * self.evaluation_batch
        ]
        train = evaluation_order(len(self.splits.train))[:COUNTED]
        common = count_pixels(self.splits.train, train, self.masks)[: self.classes]
        asked = count_pixels(self.splits.validation, held, self.masks)[: self.classes]
        matrix = np.zeros((len(asked), len(asked)))
        matrix[:, common.argmax()] = asked
        loss = frequency_sums(common, asked)["loss"]
        return self.summarise({"confusion": matrix, "loss": loss, "broken": 0}, ())

    @torch.no_grad()
    def segment(self, model: nn.Module, pixels: np.ndarray) -> np.ndarray:
        """Return the classes (height, width) of an image's pixels (height, width, channels).

        Both are uint8.
        """
        assert isinstance(model, Segmenter)
        image = self.input_format_of().normalise(resize_to_fit(pixels, self.data_config.fit))
        device = next(model.parameters()).device
        (logits,) = pixel_logits(model, [torch.from_numpy(image).to(device)])
        return classes_of(logits, pixels.shape[:2]).cpu().numpy().astype(np.uint8)

    def predict(self, model: nn.Module, inputs: Sequence[Picture]) -> list[Prediction]:
        """Return each class's share of an image's pixels, and a picture of the classes."""
        from magneto.vision.figures import overlay_png

        found = []
        for pixels in (picture.pixels() for picture in inputs):
            classes = self.segment(model, pixels)
            shares = np.bincount(classes.ravel(), minlength=len(self.names)) / classes.size
            labels = [(self.names[n], float(shares[n])) for n in np.argsort(-shares) if shares[n]]
            overlaid = overlay_png(pixels, classes, self.names)
            found.append(Prediction(labels, {"segmentation": overlaid}))
        return found

    def save_assets(self, directory: Path) -> dict[str, Any]:
        classes = {"data.classes": self.names, "model.classes": self.classes}
        return super().save_assets(directory) | classes | {"model.pretrained": None}


def pixel_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the summed cross-entropy of the pixels that have a class.

    Logits are (batch, classes, height, width), and masks are (batch, height, width).
    """
    return F.cross_entropy(logits, masks, ignore_index=IGNORED, reduction="sum")


def figures(task: Segmentation, model: nn.Module) -> Sequence[Figure]:
    from magneto.vision.figures import confusion_figure, overlay_figure

    held, classes, found = task.splits.validation, task.classes, []
    total = torch.zeros(classes, classes, dtype=torch.long)
    for index in evaluation_order(len(held))[:SHOWN].tolist():
        try:
            pixels, mask = read_pair(held, index, task.masks)
        except BrokenImage:
            continue
        answer = task.segment(model, pixels)
        total += confusion(torch.from_numpy(mask), torch.from_numpy(answer).long(), classes)
        if len(found) < OVERLAYS:
            number, name = len(found) + 1, held.name(index)
            found.append(overlay_figure(number, name, pixels, mask, answer, task.names))
    return [*found, confusion_figure(total.numpy(), task.names, "pixels")] if total.any() else found
