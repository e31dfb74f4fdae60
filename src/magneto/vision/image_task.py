"""Base classes of image tasks, and fine-tuning from another run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.stream import LazyBatches
from magneto.nn.config import TransformerConfig
from magneto.nn.position import ABSOLUTE, OWN_BIAS, SHARED_BIAS, resize_positions
from magneto.runs import pretrained_run, resolved_recipe, warn_unlearnt
from magneto.vision.augmentation import Augmentation
from magneto.vision.batches import evaluation_images
from magneto.vision.config import ImageEncoderConfig
from magneto.vision.images import ImageSplit, ImageSplits, load_images
from magneto.vision.input_size import ImageInputTask
from magneto.vision.transforms import validation_transform
from magneto.weights import StoredTensor, find_weights, open_weights

HINT = "give an image-modelling or image-classification run"
PARTS = ("embedding.", "class_token.", "encoder.")
# Fields in which model and pre-trained run must agree: they decide what the weights compute.
SHARED_FIELDS = frozenset(
    [*(field.name for field in fields(TransformerConfig)),
     "patch_size", "channels", "stem", "class_token"]
) - {"max_length"}  # fmt: skip

LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
# Prefixes of the parameters below the first layer.
EMBEDDING = ("embedding.", "class_token.", "encoder.position_embedding.", "encoder.input_norm.")


def encoder_weights(model: nn.Module, config: Any) -> dict[str, StoredTensor | Tensor]:
    """Return the weights of patch embedding, class token and encoder from the run in `pretrained`.

    Position embeddings and relative position biases are read, and interpolated to the model's grid.
    The result holds all other weights as `StoredTensor`, without reading their values. `model` may
    be on the meta device.
    """
    run, held = pretrained_encoder(config)
    stored = open_weights(find_weights(run))
    wanted = {n: t for n, t in model.state_dict().items() if n.startswith(PARTS)}
    missing = sorted(wanted.keys() - stored.keys())
    if missing:
        raise ValueError(f"{run} has no weights {missing[0]}: {HINT}")
    tables = {n: stored[n].read() for n in wanted if n.endswith((ABSOLUTE, OWN_BIAS, SHARED_BIAS))}
    others = {name: stored[name] for name in wanted.keys() - tables.keys()}
    return {**others, **resize_positions(tables, held, config)}


def pretrained_encoder(config: Any) -> tuple[Path, Any]:
    """Return the run in `pretrained`, and the configuration of that run's model.

    Raises:
        ValueError: If the run is not a run of an image task.
    """
    run = pretrained_run(config)
    held: Any = resolved_recipe(run, {}).model
    if not isinstance(held, ImageEncoderConfig):
        raise ValueError(f"{run} is not a run of an image task: {HINT}")
    return run, held


def layer_decay_multipliers(model: nn.Module, layers: int, decay: float) -> dict[str, float]:
    """Return the factor of each parameter's learning rate, by name (BEiT, arXiv 2106.08254).

    Embeddings (patches, class token, positions) are group 0, and layer l is group l + 1. Parameters
    after the last layer are the top group, which keeps the full learning rate. The rate of a lower
    group is `decay` times the rate of the next higher group. If `decay` is 1, the result is {}.
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
    """Prediction of a model for one image.

    Attributes:
        labels: Names of classes with their probabilities, the most probable first. In segmentation,
            a class's share of the pixels replaces the probability.
        pictures: Contents of PNG files by name. In segmentation, a picture shows the image,
            coloured by class.
    """

    labels: Sequence[tuple[str, float]]
    pictures: Mapping[str, bytes] = field(default_factory=dict)


def ranked(names: Sequence[str], shares: Tensor) -> list[Prediction]:
    """Return a prediction for each row of the probabilities `shares`, (rows, names)."""
    values, order = shares.sort(dim=1, descending=True, stable=True)
    return [
        Prediction([(names[int(n)], share) for n, share in zip(numbers, own, strict=True)])
        for numbers, own in zip(order.tolist(), values.tolist(), strict=True)
    ]


def count_patches(sums: Mapping[str, Any]) -> float:
    """Return the number of evaluated patches; raise ValueError if no image could be read."""
    if not sums["count"]:
        raise ValueError("no validation image can be read")
    return sums["count"]


class ImageTask(ImageInputTask):
    """Task of an encoder over patches, with an `ImageEncoderConfig` and an `ImageSourceConfig`."""

    unit = "images"
    evaluation_batch = 128

    @cached_property
    def splits(self) -> ImageSplits:
        return load_images(self.data_config, self.seed, self._progress, self.problems)

    def check(self) -> None:
        found, where = self.splits, self.data_config.source
        validation_transform(self.data_config, self.input_format)
        if found.train.channels < self.model_config.channels:
            raise ValueError(f"images of {where} have {found.train.channels} channel, but "
                             f"model.channels is {self.model_config.channels}: give "
                             f"--model.channels {found.train.channels}")  # fmt: skip

    @cached_property
    def augmentation(self) -> Any:
        return Augmentation(self.input_format, self.data_config.augmentation)

    def example(self, index: int, random: np.random.Generator) -> dict[str, Any]:
        train = self.splits.train
        image = train.read(index, self.augmentation, random)
        return {"images": image, "labels": train.label(index)}

    def fixed_batches(self, split: ImageSplit, normalisation: str | None = None) -> LazyBatches:
        """Return batches of a split without augmentation, in a fixed random order.

        The keys of a batch are "images", "labels" and "broken". `normalisation` replaces the
        normalisation in the data configuration.
        """
        input_format = self.input_format_of(split.peak, normalisation)
        return evaluation_images(
            split, validation_transform(self.data_config, input_format), input_format.blank,
            self.evaluation_batch,
            lambda batch, rows: {**batch, "labels": torch.from_numpy(split.labels_of(rows))},
        )  # fmt: skip

    def validation_batches(self) -> LazyBatches:
        return self.fixed_batches(self.splits.validation)

    def save_assets(self, directory: Path) -> dict[str, Any]:
        return super().save_assets(directory) | {"model.max_length": self.model_config.max_length}


class FineTuning(ImageTask):
    """Image task that can start from another run, with layer-wise decay of the learning rate."""

    encoder_fields = SHARED_FIELDS

    def shared_input(self) -> tuple[Path, Any] | None:
        config = self.model_config
        return pretrained_encoder(config) if config.pretrained else None

    def initial_weights(self) -> dict[str, StoredTensor | Tensor]:
        if not self.model_config.pretrained:
            return {}
        with torch.device("meta"):
            model = self.build_model()
        return encoder_weights(model, self.model_config)

    def check_pretrained(self) -> None:
        """Check that the pre-trained run fits the model, and warn if the run learnt nothing."""
        if self.model_config.pretrained:
            self.initial_weights()
            warn_unlearnt(pretrained_run(self.model_config), self._progress)

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        config = self.model_config
        return layer_decay_multipliers(model, config.layers, config.layer_decay)
