"""What the tasks over images share: the images, and the form in which the model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from magneto.progress import SILENT, Progress
from magneto.training.task import Task
from magneto.vision.batches import evaluation_images
from magneto.vision.images import ImageSplit, ImageSplits, load_images
from magneto.vision.transforms import Reading, validation_transform


def patches_read(sums: Mapping[str, Any]) -> float:
    """Return how many patches an evaluation counted.

    Raises:
        ValueError: If there are none, since no image could be read.
    """
    if not sums["count"]:
        raise ValueError("no validation image can be read: there is nothing to evaluate on")
    return sums["count"]


class ImageTask(Task):
    """A task over images, each cut in patches: an `ImageEncoderConfig` and an `ImageDataConfig`.

    Attributes:
        evaluation_batch: Images of an evaluation batch.
    """

    unit = "images"
    evaluation_batch = 128

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self._progress: Progress = SILENT

    @cached_property
    def splits(self) -> ImageSplits:
        """Training and validation images."""
        return load_images(self.data_config, self.seed, self._progress, self.problems)

    @cached_property
    def reading(self) -> Reading:
        """The form in which the model reads images."""
        config, peak = self.model_config, self.splits.train.peak
        return Reading(config.image_size, config.channels, self.data_config.normalisation, peak)

    def prepare(self, progress: Progress = SILENT) -> None:
        """List the images; see that model and data fit together.

        Raises:
            ValueError: If they don't.
        """
        if "splits" in self.__dict__:
            return
        self._progress = progress
        found, where = self.splits, self.data_config.source
        progress.say(f"{where}: {found.describe()}")
        validation_transform(self.data_config, self.reading)
        if found.train.channels < self.model_config.channels:
            raise ValueError(f"{where} has images of {found.train.channels} channel, the "
                             f"model takes {self.model_config.channels}: set "
                             "model.channels")  # fmt: skip

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return black images of the model's size."""
        config = self.model_config
        images = torch.zeros(examples, config.channels, config.image_size, config.image_size)
        return {"images": images, "broken": torch.zeros(examples, dtype=torch.bool)}

    def fixed_batches(self, split: ImageSplit) -> Sequence[dict[str, Tensor]]:
        """Return the images of a split as in validation, in mixed order.

        Keys are "images", "labels" and "broken".
        """
        transform = validation_transform(self.data_config, self.reading)
        return evaluation_images(split, transform, self.evaluation_batch, self.reading.blank)
