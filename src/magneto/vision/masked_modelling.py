"""Masked image modelling: hidden patches' codes are guessed from the others (BEiT; paper, 4.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.stream import EVALUATION_SEED, LazyBatches
from magneto.functional.cross_entropy import count_numbers, frequency_nats, linear_cross_entropy
from magneto.nn.embedding import MaskToken
from magneto.nn.init import NORMAL_STD, NormalLinear
from magneto.nn.transformer import Encoder
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.config import ImageModelConfig, ImageModellingDataConfig
from magneto.vision.image_task import ImageTask, patches_read
from magneto.vision.models import ImageEncoder
from magneto.vision.targets import (
    SAMPLED_BATCHES,
    BlockMasking,
    CodeTargets,
    load_targets,
    tokenizer_run,
)


class PatchAggregation(nn.Module):
    """Patches of a middle layer beside the last layer's class token, in a small stack of their own.

    What the hidden patches need and the middle layer lacks has to come through the class token
    (arXiv 2208.06366, section 3.2). Unlike in the released code its last norm, and a shared
    relative bias where the model has one, are its own.
    """

    def __init__(self, config: ImageModelConfig) -> None:
        super().__init__()
        shape = replace(config, layers=config.aggregation_depth, aggregation_layer=None)
        self.encoder = Encoder(replace(shape, positions="none", drop_path=0.0))

    def forward(self, middle: Tensor, last: Tensor) -> Tensor:
        """From features of the middle and the last layer to those of the second guess."""
        return self.encoder(torch.cat((last[:, :1], middle[:, 1:]), dim=1))


class MaskedImageModel(ImageEncoder):
    """An encoder over patches, some of them hidden, and a head over the codes.

    The head, the stack's last norm and one linear layer, sees the hidden places alone.
    """

    def __init__(self, config: ImageModelConfig) -> None:
        if config.codes is None:
            raise ValueError("codes are not known: prepare the task, which asks the tokenizer")
        super().__init__(config)
        self.mask_token = MaskToken(config.width)
        middle, last = config.aggregation_layer, config.layers - 1
        self.aggregation = None if middle is None else PatchAggregation(config)
        # Layers that are read, counted from 0.
        self.read = (last,) if middle is None else (middle - 1, last)
        self.head = NormalLinear(config.width, config.codes, bias=True, std=NORMAL_STD)

    def hide(self, patches: Tensor, hidden: Tensor) -> Tensor:
        """Replace the hidden ones of (batch, patches, width); see `features`."""
        places = torch.zeros(patches.shape[:2], dtype=torch.bool, device=patches.device)
        return self.mask_token(patches, places.scatter(1, hidden, True))

    def features(self, images: Tensor, hidden: Tensor) -> list[Tensor]:
        """Return what the head reads at the hidden places: of the guess, and of a second one.

        From (batch, channels, height, width) and the numbers of the hidden patches, (batch, count),
        to (batch, count, width) each.
        """
        x = self.class_token(self.hide(self.embedding(images), hidden))
        read = self.encoder.features(x, self.read)
        found = [self.encoder.final_norm(read[-1])]
        if self.aggregation is not None:
            found.append(self.aggregation(*read))
        index = (hidden + self.config.prefix)[..., None].expand(-1, -1, x.shape[-1])
        return [features.gather(1, index) for features in found]

    def forward(self, images: Tensor, hidden: Tensor, codes: Tensor | None = None) -> Any:
        """Return the guess's logits, (batch, count, codes); or with codes, (batch, count), losses.

        These are of the model's own guess and of a second one, if there is one; their logits never
        exist all at once.
        """
        if codes is None:
            return self.head(self.features(images, hidden)[0])
        weight, bias, chunk = self.head.weight, self.head.bias, self.config.loss_chunk
        return [
            linear_cross_entropy(features, weight, codes, bias, chunk=chunk)
            for features in self.features(images, hidden)
        ]


class ImageModelling(ImageTask):
    """Images, a `MaskedImageModel`, nats per hidden patch.

    The codes come from a frozen tokenizer, which sees the same crop in the same colours.
    """

    evaluation_batch = 64

    model_config: ImageModelConfig
    data_config: ImageModellingDataConfig

    @cached_property
    def masking(self) -> BlockMasking:
        """What hides patches."""
        grid = self.model_config.grid
        return BlockMasking(grid.rows, grid.columns, self.data_config.mask_ratio)

    @cached_property
    def targets(self) -> CodeTargets:
        """The frozen tokenizer; on the CPU until it is the companion."""
        config, data = self.model_config, self.data_config
        return load_targets(
            data.image_tokenizer, config, data.normalisation, self.seed,
            lambda: self.fixed_batches(self.splits.train, "half"),
        )  # fmt: skip

    def shared_input(self) -> tuple[Path, Any] | None:
        """Return the tokenizer's run, if it is one, and its model's configuration."""
        return tokenizer_run(self.data_config.image_tokenizer)

    def codes(self) -> int:
        """Return how many codes the model guesses among: the tokenizer's, if none are set."""
        return self.targets.agreed_codes(self.model_config.codes)

    def check(self) -> None:
        """See that images, model and tokenizer fit together."""
        super().check()
        if self.data_config.augmentation.erasing:
            raise ValueError("data.augmentation.erasing must be 0: what is erased has no code")
        where, count = self.data_config.image_tokenizer, self.masking.count
        self._progress.say(f"{where}: {self.codes()} codes; {count} of {self.model_config.patches} "
                           "patches are hidden")  # fmt: skip

    def build_model(self) -> MaskedImageModel:
        """Build the model, with as many codes as the tokenizer has if none are set."""
        codes = self.model_config.codes or self.codes()
        return MaskedImageModel(replace(self.model_config, codes=codes))

    def companion(self) -> nn.Module:
        """Return the tokenizer."""
        return self.targets

    def example(self, index: int, random: np.random.Generator) -> dict[str, Any]:
        """Return an image and its hidden patches, other ones each time it comes."""
        image = self.augmentation(self.splits.train.open(index), random)
        return {"images": image, "hidden": self.masking.draw(random)}

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return black images with as many patches hidden as always."""
        hidden = torch.arange(self.masking.count).repeat(examples, 1)
        return {**super().dummy_batch(examples), "hidden": hidden}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the hidden patches, of the guess and a second one."""
        found = model(batch["images"], batch["hidden"], self._wanted(batch))
        total = torch.stack([loss.total for loss in found]).sum()
        logs = {"guess": found[0].total.detach()} if len(found) > 1 else {}
        return Loss(total, found[0].count, logs)

    def _wanted(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the codes of the hidden patches, (batch, count)."""
        return self.targets(batch["images"]).gather(1, batch["hidden"])

    def validation_batches(self) -> LazyBatches:
        """Return the validation images in mixed order; the same patches are always hidden."""
        batches = self.fixed_batches(self.splits.validation)

        def make(rows: np.ndarray) -> dict[str, Tensor]:
            draws = (np.random.default_rng([EVALUATION_SEED, int(row)]) for row in rows)
            hidden = np.stack([self.masking.draw(random) for random in draws])
            return {**batches.make(rows), "hidden": torch.from_numpy(hidden)}

        return LazyBatches(batches.plans, make)

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Sum the cross-entropy over the hidden patches; count them, and those guessed right.

        Images that could not be read are left out. Of two guesses the model's own counts.
        """
        codes = self._wanted(batch)
        logits = model(batch["images"], batch["hidden"]).flatten(0, 1).float()
        there = (~batch["broken"])[:, None].expand_as(codes).flatten()
        nats = F.cross_entropy(logits, codes.flatten(), reduction="none")
        right = logits.argmax(-1) == codes.flatten()
        return Scores({
            "loss": (nats * there).sum(), "right": (right & there).sum(), "count": there.sum(),
        })  # fmt: skip

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss (nats per hidden patch), perplexity, and the share guessed right.

        Raises:
            ValueError: If no image could be read.
        """
        count = patches_read(sums)
        loss = sums["loss"] / count
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "masked_accuracy": sums["right"] / count,
        }

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the metrics of the codes' frequencies in a sample of the training images."""
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
        sums = {
            "loss": frequency_nats(train, asked),
            "right": float(asked[train.argmax()]),
            "count": float(asked.sum()),
        }
        return self.summarise(sums, ())

    def digests(self) -> list[str]:
        """Return names of the content of the images and of the tokenizer."""
        return [*super().digests(), self.targets.digest()]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write a digest of images and tokenizer; return the number of codes too."""
        return super().save_assets(directory) | {"model.codes": self.codes()}


@torch.no_grad()
def figures(task: ImageModelling, model: Any) -> Sequence[Figure]:
    """Return what is hidden, what is guessed, and where the class token looks."""
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
