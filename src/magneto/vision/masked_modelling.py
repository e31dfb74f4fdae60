"""Masked image modelling: prediction of the codes of masked patches (BEiT; paper, section 4.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.stream import EVALUATION_SEED, LazyBatches
from magneto.functional.cross_entropy import (
    IGNORED,
    count_numbers,
    frequency_sums,
    linear_cross_entropy,
    loss_metrics,
    prediction_sums,
)
from magneto.nn.embedding import MaskToken
from magneto.nn.init import NORMAL_STD, NormalLinear
from magneto.nn.transformer import Encoder
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.config import ImageModelConfig, ImageModellingDataConfig, require
from magneto.vision.image_task import ImageTask, count_patches
from magneto.vision.models import ImageEncoder
from magneto.vision.targets import SAMPLED_BATCHES, BlockMasking, CodePrediction


class PatchAggregation(nn.Module):
    """Small stack over a middle layer's patches and the last layer's class token.

    Patch features of a middle layer do not describe the whole image. So the class token must learn
    to describe it (arXiv 2208.06366, section 2.3). In BEiT v2's released code, the small stack
    uses the model's final norm and relative position bias. In Magneto, the small stack has
    a separate norm and bias.
    """

    def __init__(self, config: ImageModelConfig) -> None:
        super().__init__()
        shape = replace(config, layers=config.aggregation_depth, aggregation_layer=None)
        self.encoder = Encoder(replace(shape, positions="none", drop_path=0.0))

    def forward(self, middle: Tensor, last: Tensor) -> Tensor:
        return self.encoder(torch.cat((last[:, :1], middle[:, 1:]), dim=1))


class MaskedImageModel(ImageEncoder):
    """Masked image model: an encoder over patches, and a head over codes at masked positions."""

    def __init__(self, config: ImageModelConfig) -> None:
        codes = require(config.codes, "codes")
        super().__init__(config)
        self.mask_token = MaskToken(config.width)
        middle, last = config.aggregation_layer, config.layers - 1
        self.aggregation = None if middle is None else PatchAggregation(config)
        # Layers whose features are used, counted from 0.
        self.read = (last,) if middle is None else (middle - 1, last)
        self.head = NormalLinear(config.width, codes, bias=True, std=NORMAL_STD)

    def hide(self, patches: Tensor, hidden: Tensor) -> Tensor:
        places = torch.zeros(patches.shape[:2], dtype=torch.bool, device=patches.device)
        return self.mask_token(patches, places.scatter(1, hidden, True))

    def features(self, images: Tensor, hidden: Tensor) -> list[Tensor]:
        """Return a list with the features at masked positions, (batch, count, width).

        With patch aggregation, the list has a second item: the features of the small stack. Images
        are (batch, channels, height, width). `hidden` (batch, count) has the indices of masked
        patches.
        """
        x = self.class_token(self.hide(self.embedding(images), hidden))
        read = self.encoder.features(x, self.read)
        found = [self.encoder.final_norm(read[-1])]
        if self.aggregation is not None:
            found.append(self.aggregation(*read))
        index = (hidden + self.config.prefix)[..., None].expand(-1, -1, x.shape[-1])
        return [features.gather(1, index) for features in found]

    def forward(self, images: Tensor, hidden: Tensor, codes: Tensor | None = None) -> Any:
        """Return logits (batch, count, number of codes), or a list of losses if `codes` are given.

        `codes` are the targets, (batch, count). With patch aggregation, the second loss of the list
        is that of the small stack.
        """
        if codes is None:
            return self.head(self.features(images, hidden)[0])
        weight, bias, chunk = self.head.weight, self.head.bias, self.config.loss_chunk
        return [
            linear_cross_entropy(features, weight, codes, bias, chunk=chunk)
            for features in self.features(images, hidden)
        ]


class ImageModelling(CodePrediction, ImageTask):
    """Masked image modelling with a `MaskedImageModel`; the loss is in nats per masked patch.

    The codes come from a frozen image tokenizer, which reads the same augmented image as the model.
    """

    evaluation_batch = 64

    model_config: ImageModelConfig
    data_config: ImageModellingDataConfig

    @cached_property
    def patches(self) -> BlockMasking:
        grid = self.model_config.grid
        return BlockMasking(grid.rows, grid.columns, self.data_config.mask_ratio)

    def plain_batches(self) -> LazyBatches:
        return self.fixed_batches(self.splits.train, "half")

    def build_model(self) -> MaskedImageModel:
        codes = self.model_config.codes or self.codes()
        return MaskedImageModel(replace(self.model_config, codes=codes))

    def example(self, index: int, random: np.random.Generator) -> dict[str, Any]:
        image = self.augmentation(self.splits.train.open(index), random)
        return {"images": image, "hidden": self.patches.draw(random)}

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        hidden = torch.arange(self.patches.count).repeat(examples, 1)
        return {**super().dummy_batch(examples), "hidden": hidden}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        found = model(batch["images"], batch["hidden"], self._wanted(batch))
        total = torch.stack([loss.total for loss in found]).sum()
        logs = {"guess": found[0].total.detach()} if len(found) > 1 else {}
        return Loss(total, found[0].count, logs)

    def _wanted(self, batch: dict[str, Tensor]) -> Tensor:
        return self.targets(batch["images"]).gather(1, batch["hidden"])

    def validation_batches(self) -> LazyBatches:
        batches = self.fixed_batches(self.splits.validation)

        def make(rows: np.ndarray) -> dict[str, Tensor]:
            draws = (np.random.default_rng([EVALUATION_SEED, int(row)]) for row in rows)
            hidden = np.stack([self.patches.draw(random) for random in draws])
            return {**batches.make(rows), "hidden": torch.from_numpy(hidden)}

        return LazyBatches(batches.plans, make)

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        codes = self._wanted(batch).masked_fill(batch["broken"][:, None], IGNORED)
        logits = model(batch["images"], batch["hidden"]).flatten(0, 1)
        return Scores(prediction_sums(logits, codes.flatten()))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        count = count_patches(sums)
        return loss_metrics(sums) | {"masked_accuracy": sums["right"] / count}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        self.prepare()
        size, targets = self.codes(), self.targets
        device = targets.scale.device

        def codes_of(batch: dict[str, Tensor]) -> Tensor:
            return targets(batch["images"].to(device)).cpu()[~batch["broken"]]

        some = islice(self.fixed_batches(self.splits.train), SAMPLED_BATCHES)
        train = count_numbers(torch.cat([codes_of(b).flatten() for b in some]).numpy(), size)
        held = islice(self.validation_batches(), limit)
        hidden = [codes_of(b).gather(1, b["hidden"][~b["broken"]]).flatten() for b in held]
        asked = count_numbers(torch.cat(hidden).numpy(), size)
        return self.summarise(frequency_sums(train, asked), ())


@torch.no_grad()
def figures(task: ImageModelling, model: Any) -> Sequence[Figure]:
    from magneto.vision import figures as drawn

    images, hidden = drawn.readable(task.validation_batches(), SAMPLED_BATCHES, "images", "hidden")
    if not len(images):
        return []
    device, targets = next(model.parameters()).device, task.targets
    codes = drawn.codes_of(targets, images, targets.scale.device)
    seen = drawn.codes_of(targets.view, images, targets.scale.device)
    some, masked = images[: drawn.IMAGES], hidden[: drawn.IMAGES]
    guesses = model(some.to(device), masked.to(device)).argmax(-1).cpu()
    looking = slice(0, model.config.prefix or None)
    return [
        drawn.guesses_figure(seen, codes, masked, guesses, targets.codes, targets.patch_size),
        drawn.attention_figure(model, some, seen[: drawn.IMAGES], looking),
    ]
