"""Image size, patch size and channels: if null in a recipe, they are derived from the images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from magneto.data.stream import BatchStream
from magneto.data.table import evenly_spaced
from magneto.progress import SILENT, Progress
from magneto.training.task import Task, write_assets
from magneto.vision.batches import Finish, image_stream
from magneto.vision.config import LARGEST_SIDE, ImageEncoderConfig
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import ImageSplit
from magneto.vision.transforms import InputFormat

# Images of the sample from which sizes are derived.
SAMPLE = 200
# An image with more pixels takes half a second and more to decode, in every epoch.
MOST_PIXELS = 30_000_000
FIELDS = ("image_size", "patch_size", "channels")


def open_sizes(config: Any) -> set[str]:
    return {name for name in FIELDS if getattr(config, name) is None}


@dataclass(frozen=True)
class ImageSample:
    """Sizes and colours of a sample of images.

    Attributes:
        sizes: Height and width of each image, int64 (images, 2).
        grey: Whether all images are grey.
        huge: Name and size of an image with more than `MOST_PIXELS` pixels, or "".
    """

    sizes: np.ndarray
    grey: bool
    huge: str

    @property
    def median_side(self) -> int:
        return int(np.median(self.sizes.min(1)))


def sample_images(split: ImageSplit) -> ImageSample:
    """Open a sample of a split's images; raise ValueError if none can be read."""
    sizes, grey, huge, example = [], True, "", ""
    for index in evenly_spaced(len(split), SAMPLE).tolist():
        try:
            picture = split.open(index)
            height, width = picture.height, picture.width
            sizes.append((height, width))
            if height * width > MOST_PIXELS:
                huge = f"{split.name(index)} has {width} x {height} pixels"
                grey = False
            elif grey:
                pixels = picture.pixels(8 if min(height, width) > 8 * LARGEST_SIDE else 1)
                grey = bool((pixels == pixels[..., :1]).all())
        except BrokenImage as error:
            example = example or f"{split.name(index)}: {error}"
    if not sizes:
        raise ValueError(f"none of the {min(SAMPLE, len(split))} sampled images can be read. First "
                         f"error: {example}")  # fmt: skip
    return ImageSample(np.array(sizes), grey, huge)


class ImageInputTask(Task):
    """Task whose model reads images of one size.

    The model's configuration is an `ImageInputConfig`.

    Attributes:
        splits: Training and validation images.
        rows: Plural noun for the examples in messages, such as "images".
        encoder_fields: Fields of the model that must equal those of the pre-trained run.
    """

    model_config: Any
    splits: Any
    rows: ClassVar[str] = "images"
    tokenizer: Any = None  # of texts beside images
    encoder_fields: ClassVar[frozenset[str]] = frozenset()
    _prepared = False

    def describe(self) -> str:
        return self.splits.describe(self.rows)

    def check(self) -> None:
        """Raise ValueError if model and data do not fit together."""
        return None

    def shared_input(self) -> tuple[Path, Any] | None:
        """Return the run that determines the image size, and the configuration of its model.

        The result is None if the size is not from a run.
        """
        return None

    def pretrained_normalisation(self, run: Path) -> str:
        """Return the normalisation of the images with which a run was trained."""
        from magneto.runs import open_run

        return open_run(run).data.normalisation

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the data, derive the sizes that are null, and check the model.

        If the task is already prepared, the method does nothing.
        """
        if self._prepared:
            return
        self._progress = progress
        if self.encoder_fields and (found := self.shared_input()):
            # Only tasks that begin with another run load the code that reads runs.
            from magneto.runs import check_same_encoder

            names = self.encoder_fields - open_sizes(self.model_config)
            check_same_encoder(*found, self.model_config, names)
            given = self.data_config.normalisation
            if (trained := self.pretrained_normalisation(found[0])) != given:
                raise ValueError(f"{found[0]} was trained with normalisation {trained!r}, not "
                                 f"{given!r}: give --data.normalisation {trained}")  # fmt: skip
        progress.say(f"{self.data_config.source}: {self.describe()}")
        self._derive_sizes()
        self.check()
        self._prepared = True

    def _derive_sizes(self) -> None:
        config: Any = self.model_config
        if not open_sizes(config):
            return
        if run := self.shared_input():
            source, known = f"as in {run[0]}", run[1]
            values = {name: getattr(config, name) or getattr(known, name) for name in FIELDS}
        else:
            sample = sample_images(self.splits.train)
            side = sample.median_side
            source = f"derived from a median shorter side of {side} pixels"
            size, patch = config.derived_sizes(side)
            channels = config.channels or (1 if sample.grey else 3)
            values = {"image_size": size, "patch_size": patch, "channels": channels}
        patches = (values["image_size"] // values["patch_size"]) ** 2
        shown = [f"{name} {value}{' (given)' if getattr(config, name) else ''}"
                 for name, value in values.items()]  # fmt: skip
        if isinstance(config, ImageEncoderConfig):
            values |= {"max_length": patches + config.prefix}
        self._progress.say(f"{', '.join(shown)}, {patches} patches, {source}")
        self.model_config = replace(config, **values)

    @cached_property
    def input_format(self) -> InputFormat:
        return self.input_format_of(self.splits.train.peak)

    def input_format_of(self, peak: int = 255, normalisation: str | None = None) -> InputFormat:
        """Return the input format of images with pixel values from 0 to `peak`."""
        size, _, channels = self.model_config.input_sizes
        return InputFormat(size, channels, normalisation or self.data_config.normalisation, peak)

    @cached_property
    def training_rows(self) -> ImageSplit:
        """Examples of an epoch."""
        return self.splits.train

    def example(self, index: int, random: np.random.Generator) -> dict[str, Any]:
        """Return the training example with this index, as arrays and numbers by name."""
        raise NotImplementedError

    def finish(self, seed: int) -> Finish:
        """Return the function that completes each batch; see `magneto.vision.batches.Finish`."""
        return lambda batch, numbers, draws: batch

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return batches of augmented examples in random order; see `image_stream`."""
        rows, repeats = self.training_rows, getattr(self.data_config.augmentation, "repeats", 1)
        return image_stream(
            len(rows), self.example, batch_size, seed, repeats, self.finish(seed), rows.broken
        )

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        broken = torch.zeros(examples, dtype=torch.bool)
        return {"images": self.black_images(examples), "broken": broken}

    def black_images(self, count: int) -> Tensor:
        size, _, channels = self.model_config.input_sizes
        return torch.zeros(count, channels, size, size)

    def digests(self) -> list[str]:
        return [self.splits.train.digest, self.splits.validation.digest]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        sizes = {f"model.{name}": getattr(self.model_config, name) for name in FIELDS}
        return sizes | write_assets(directory, " ".join(self.digests()), self.tokenizer)
