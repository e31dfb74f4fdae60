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

from magneto.data.batch import EVALUATION_SEED, LazyBatches
from magneto.data.cache import content_digest
from magneto.data.frequencies import count_numbers, frequency_nats
from magneto.data.stream import BatchStream
from magneto.data.tokenizer import NOISE_TOKENIZER
from magneto.files import user_path
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, Figure, Loss, Scores
from magneto.vision.batches import example_stream
from magneto.vision.image_task import ImageTask, patches_read
from magneto.vision.modelling.config import (
    BUILTIN_TOKENIZER,
    ImageModelConfig,
    ImageModellingDataConfig,
)
from magneto.vision.modelling.masking import BlockMasking
from magneto.vision.modelling.model import MaskedImageModel
from magneto.vision.modelling.targets import (
    CodeTargets,
    PatchTokenizer,
    load_tokenizer,
    noise_tokenizer,
)
from magneto.vision.transforms import training_transform

# Batches of training images of which code frequencies and builtin:patches are made.
SAMPLED_BATCHES = 16


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
        if data.image_tokenizer == NOISE_TOKENIZER:
            return self._frozen(noise_tokenizer(config, self.seed))
        if data.image_tokenizer != BUILTIN_TOKENIZER:
            tokenizer = load_tokenizer(user_path(data.image_tokenizer), config)
            return self._frozen(tokenizer)
        if config.codes is None:
            raise ValueError(f"set model.codes for data.image_tokenizer {BUILTIN_TOKENIZER}")
        task = type(self)(config, replace(data, normalisation="half"), self.seed)
        some = islice(task.fixed_batches(self.splits.train), SAMPLED_BATCHES)
        images = (batch["images"][~batch["broken"]] for batch in some)
        return self._frozen(PatchTokenizer(config, images, self.seed))

    def _frozen(self, tokenizer: Any) -> CodeTargets:
        targets = CodeTargets(tokenizer, self.data_config.normalisation)
        return targets.requires_grad_(False).eval()

    def codes(self) -> int:
        """Return how many codes the model guesses among: the tokenizer's, if none are set.

        Raises:
            ValueError: If the number set is another one.
        """
        known, wanted = self.targets.codes, self.model_config.codes
        if wanted not in (None, known):
            raise ValueError(f"the tokenizer has {known} codes, model.codes is {wanted}")
        return known

    def prepare(self, progress: Progress = SILENT) -> None:
        """List the images, open the tokenizer; see that all fits together.

        Raises:
            FileNotFoundError: If there are no images, or there is no tokenizer.
            ValueError: If something doesn't fit.
        """
        if "splits" in self.__dict__:
            return
        super().prepare(progress)
        if self.data_config.augmentation.erasing:
            raise ValueError("data.augmentation.erasing must be 0: what is erased has no code")
        where, count = self.data_config.image_tokenizer, self.masking.count
        progress.say(f"{where}: {self.codes()} codes; {count} of {self.model_config.patches} "
                     "patches are hidden")  # fmt: skip

    def build_model(self) -> MaskedImageModel:
        """Build the model, with as many codes as the tokenizer has if none are set."""
        codes = self.model_config.codes or self.codes()
        return MaskedImageModel(replace(self.model_config, codes=codes))

    def companion(self) -> nn.Module:
        """Return the tokenizer."""
        return self.targets

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images in random order, augmented, other patches hidden each time they come."""
        data, train = self.data_config, self.splits.train
        transform = training_transform(data, self.reading)

        def example(index: int, random: np.random.Generator) -> dict[str, np.ndarray]:
            image = transform(train.open(index), random)
            return {"images": image, "hidden": self.masking.draw(random)}

        return example_stream(
            len(train), example, batch_size, seed, data.augmentation.repeats, broken=train.broken
        )

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return black images with as many patches hidden as always."""
        hidden = torch.arange(self.masking.count).repeat(examples, 1)
        return {**super().dummy_batch(examples), "hidden": hidden}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the hidden patches, of the guess and a second one."""
        found = model(batch["images"], batch["hidden"], self._wanted(batch))
        total = torch.stack([loss.total for loss in (found.loss, *found.others)]).sum()
        logs = {"guess": found.loss.total.detach()} if found.others else {}
        return Loss(total, found.loss.count, logs)

    def _wanted(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the codes of the hidden patches, (batch, count)."""
        return self.targets(batch["images"]).gather(1, batch["hidden"])

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        """Return the validation images in mixed order; the same patches are always hidden."""
        batches: Any = self.fixed_batches(self.splits.validation)

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

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write a digest of images and tokenizer, which tells how many codes there are."""
        parts = (self.splits.train.digest, self.splits.validation.digest, self.targets.digest())
        digest = content_digest(*(part.encode() for part in parts))
        (directory / DIGEST_FILE).write_text(digest, encoding="utf-8")
        return {"model.codes": self.codes()}


def figures(task: ImageModelling, model: Any) -> Sequence[Figure]:
    """Return pictures of what is hidden, what is guessed, and where the class token looks."""
    from magneto.vision.modelling.pictures import attention_figure, guesses_figure
    from magneto.vision.tokenizer.pictures import readable_batches

    sample = readable_batches(task.validation_batches(), SAMPLED_BATCHES)
    if not sample:
        return ()
    return guesses_figure(model, task.targets, sample), attention_figure(
        model, task.targets, sample
    )
