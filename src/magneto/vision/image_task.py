"""What the tasks over images share: the images, how a model reads them, what it says of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.cache import content_digest
from magneto.data.stream import BatchStream, LazyBatches
from magneto.nn.config import TransformerConfig
from magneto.nn.position import resize_positions
from magneto.progress import SILENT, Progress
from magneto.runs import check_same_encoder, pretrained_run, resolved_recipe, warn_unlearnt
from magneto.training.task import DIGEST_FILE, Task
from magneto.vision.augmentation import Augmentation
from magneto.vision.batches import Finish, evaluation_images, example_stream
from magneto.vision.images import ImageSplit, ImageSplits, load_images
from magneto.vision.input_size import FIELDS, resolve_input
from magneto.vision.transforms import Reading, validation_transform
from magneto.weights import StoredTensor, find_weights, in_memory, open_tensors

WANTED = "give an image-modelling or image-classification run"
PARTS = ("embedding.", "class_token.", "encoder.")
# Of both runs' encoders alike: what the weights compute depends on them.
SAME = {
    *(field.name for field in fields(TransformerConfig)),
    *("patch_size", "channels", "stem", "class_token"),
} - {"max_length"}

LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
# What is below the first layer.
EMBEDDING = ("embedding.", "class_token.", "encoder.position_embedding.", "encoder.input_norm.")


def encoder_weights(model: nn.Module, config: Any) -> dict[str, StoredTensor]:
    """Return patches, class token, positions and layers of the run that `pretrained` names.

    Learned positions are interpolated to the model's grid, whose shapes alone are looked at. The
    run's head, and a norm on top of its stack, are left.

    Raises:
        FileNotFoundError: If there is no such run, or it has no weights.
        ValueError: If its encoder is another one; names the options that would fit.
    """
    run, held = pretrained_encoder(config)
    check_same_encoder(run, held, config, SAME)
    stored = open_tensors(find_weights(run))
    wanted = {n: t for n, t in model.state_dict().items() if n.startswith(PARTS)}
    missing = sorted(wanted.keys() - stored.keys())
    if missing:
        raise ValueError(f"{run} has no {missing[0]}: {WANTED}")
    state = {name: stored[name].read() for name in wanted}
    return {n: in_memory(n, t) for n, t in resize_positions(state, held, config).items()}


def pretrained_encoder(config: Any) -> tuple[Path, Any]:
    """Return the run that `pretrained` names, and its model's configuration.

    Raises:
        FileNotFoundError: If there is no such run.
        ValueError: If it is not a run of images.
    """
    run = pretrained_run(config)
    held: Any = resolved_recipe(run, {}).model
    if getattr(held, "grid", None) is None:
        raise ValueError(f"{run} is no run of images: {WANTED}")
    return run, held


def layer_decay_multipliers(model: nn.Module, layers: int, decay: float) -> dict[str, float]:
    """Return multiples of the learning rate by parameter's name (BEiT, arXiv 2106.08254).

    Patches, class token and positions are group 0, layer l is group l + 1, and all above the layers
    is the last group, which learns at the full rate; each group below learns at `decay` times the
    rate of the one above it.
    """
    if decay == 1:
        return {}
    last = layers + 1

    def group(name: str) -> int:
        found = LAYER.match(name)
        if found:
            return int(found[1]) + 1
        return 0 if name.startswith(EMBEDDING) else last

    return {name: decay ** (last - group(name)) for name, _ in model.named_parameters()}


@dataclass(frozen=True)
class Prediction:
    """What a model says of an image.

    Attributes:
        labels: Names of classes and their shares, the largest first: probabilities of a label, or
            the parts of the image that show them.
        pictures: PNG files' bytes by name: the image with what was found drawn over it.
    """

    labels: Sequence[tuple[str, float]]
    pictures: Mapping[str, bytes] = field(default_factory=dict)


def patches_read(sums: Mapping[str, Any]) -> float:
    """Return how many patches an evaluation counted; ValueError if no image could be read."""
    if not sums["count"]:
        raise ValueError("no validation image can be read: there is nothing to evaluate on")
    return sums["count"]


class ImageTask(Task):
    """A task over images, each cut in patches: an `ImageEncoderConfig` and an `ImageSourceConfig`.

    Attributes:
        evaluation_batch: Images of an evaluation batch.
        resizes_images: Whether images are resized to the model's image size, not only cropped.
    """

    unit = "images"
    evaluation_batch = 128
    resizes_images = True

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self._checked = False

    @cached_property
    def splits(self) -> ImageSplits:
        """Training and validation images."""
        return load_images(self.data_config, self.seed, self._progress, self.problems)

    @cached_property
    def reading(self) -> Reading:
        """The form in which the model reads the source's images."""
        return self.reading_of(self.splits.train.peak)

    def reading_of(self, peak: int = 255) -> Reading:
        """Return the form in which the model reads images whose brightest pixel is `peak`."""
        size, _, channels = self.model_config.input_sizes
        return Reading(size, channels, self.data_config.normalisation, peak)

    def prepare(self, progress: Progress = SILENT) -> None:
        """List the images; see that model and data fit together. The second time nothing is done.

        Raises:
            FileNotFoundError: If there is no source.
            ValueError: If something does not fit.
        """
        self._progress = progress
        if not self._checked:
            progress.say(f"{self.data_config.source}: {self.splits.describe()}")
            self.model_config = resolve_input(
                self.model_config, self.splits.train, self.shared_input, progress,
                self.resizes_images,
            )  # fmt: skip
            self.check()
        self._checked = True

    def shared_input(self) -> tuple[Path, Any] | None:
        """Return the run whose image size this model shares, and its model's configuration."""
        return None

    def check(self) -> None:
        """Raise ValueError if model and data do not fit together."""
        found, where = self.splits, self.data_config.source
        validation_transform(self.data_config, self.reading)
        if found.train.channels < self.model_config.channels:
            raise ValueError(f"{where} has images of {found.train.channels} channel, the "
                             f"model takes {self.model_config.channels}: set "
                             "model.channels")  # fmt: skip

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return black images of the model's size."""
        size, _, channels = self.model_config.input_sizes
        images = torch.zeros(examples, channels, size, size)
        return {"images": images, "broken": torch.zeros(examples, dtype=torch.bool)}

    @cached_property
    def augmentation(self) -> Any:
        """What is done to a training image."""
        return Augmentation(self.reading, self.data_config.augmentation)

    def example(self, index: int, random: np.random.Generator) -> dict[str, Any]:
        """Return what a training batch has of an image."""
        train = self.splits.train
        image = self.augmentation(train.open(index), random)
        return {"images": image, "labels": train.label(index)}

    def finish(self, seed: int) -> Finish:
        """Return what is done to a batch of examples."""
        return lambda batch, numbers, draws: batch

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return examples of images in random order, augmented, and which are "broken"."""
        train, repeats = self.splits.train, self.data_config.augmentation.repeats
        finish = self.finish(seed)
        return example_stream(
            len(train), self.example, batch_size, seed, repeats, finish, train.broken
        )

    def fixed_batches(self, split: ImageSplit, normalisation: str | None = None) -> LazyBatches:
        """Return the images of a split as in validation, in mixed order.

        Keys are "images", "labels" and "broken"; `normalisation` may be another than the model's.
        """
        reading = replace(self.reading, normalisation=normalisation or self.reading.normalisation)
        transform = validation_transform(self.data_config, reading)
        return evaluation_images(split, transform, self.evaluation_batch, reading.blank)

    def validation_batches(self) -> LazyBatches:
        """Return the validation images, in mixed order."""
        return self.fixed_batches(self.splits.validation)

    def digests(self) -> list[str]:
        """Return names of the content of the images, and of all else that a run is made of."""
        return [self.splits.train.digest, self.splits.validation.digest]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write a digest of the data; return the sizes of the model's images."""
        digest = content_digest(*(part.encode() for part in self.digests()))
        (directory / DIGEST_FILE).write_text(digest, encoding="utf-8")
        names = (*FIELDS, "max_length")
        return {f"model.{name}": getattr(self.model_config, name) for name in names}


class FineTuning(ImageTask):
    """A task that may begin with the encoder of another run, whose layers learn slower."""

    def shared_input(self) -> tuple[Path, Any] | None:
        """Return the run to begin with, if one is named, and its model's configuration."""
        config = self.model_config
        return pretrained_encoder(config) if config.pretrained else None

    def initial_weights(self) -> dict[str, StoredTensor]:
        """Return patches, positions and encoder of another run, if one is named."""
        if not self.model_config.pretrained:
            return {}
        with torch.device("meta"):
            model = self.build_model()
        return encoder_weights(model, self.model_config)

    def check_pretrained(self) -> None:
        """See that the run to begin with fits; say it if it has learnt nothing."""
        if self.model_config.pretrained:
            self.initial_weights()
            warn_unlearnt(pretrained_run(self.model_config), self._progress)

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        """Return the layer-wise decay of the learning rate."""
        config = self.model_config
        return layer_decay_multipliers(model, config.layers, config.layer_decay)
