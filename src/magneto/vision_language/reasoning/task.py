"""Visual reasoning: whether a statement is true of two images (NLVR2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from magneto.data.frequencies import count_numbers, frequency_nats
from magneto.data.stream import BatchStream
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.batches import Transform
from magneto.vision.decoding import Picture
from magneto.vision.image_task import Prediction
from magneto.vision.images import MISSING_IMAGE
from magneto.vision.transforms import Reading
from magneto.vision_language.fine_tuned_task import FineTunedTask
from magneto.vision_language.reasoning.batches import StatementBatches
from magneto.vision_language.reasoning.config import (
    IMAGES,
    StatementDataConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.reasoning.figures import statement_figures
from magneto.vision_language.reasoning.files import STATEMENTS
from magneto.vision_language.reasoning.model import VisualReasoner
from magneto.vision_language.reasoning.scores import consistency
from magneto.vision_language.reasoning.sources import load_statements
from magneto.vision_language.reasoning.statements import ANSWERS, StatementSplit, StatementSplits
from magneto.vision_language.samples import join_samples
from magneto.vision_language.whole_images import WholeImage, WholeImageAugmentation

EVALUATION_BATCH = 64


class VisualReasoning(FineTunedTask):
    """Statements about images, a `VisualReasoner`; nats per statement."""

    primary_metric = "accuracy"
    unit = "statements"
    model_config: VisualReasonerConfig
    data_config: StatementDataConfig

    def read_splits(self) -> StatementSplits:
        """Training and validation statements."""
        return load_statements(self.data_config)

    def training_texts(self) -> Iterable[str]:
        """Return the training statements."""
        return (one.sentence for one in self.splits.train.statements)

    def check_data(self) -> None:
        """Say how many statements there are, and which images are missing."""
        where, found = self.data_config.source, self.splits
        train, held = found.train, found.validation
        odd = found.counts.describe(STATEMENTS) if found.counts else "built in"
        self._progress.say(f"{where}: {len(train):,} statements to train on, {len(held):,} to "
                           f"validate on; read: {odd}")  # fmt: skip
        for name in sorted({*train.missing, *held.missing}):
            self.problems.met(MISSING_IMAGE, name, "no such file")

    def build_model(self) -> VisualReasoner:
        """Build the model; the encoder of a pre-trained run is in `initial_weights`."""
        return VisualReasoner(self.sized_config())

    @cached_property
    def train(self) -> StatementBatches:
        """The training statements, tokenised."""
        return self._batches("training", self.splits.train)

    @cached_property
    def validation(self) -> StatementBatches:
        """The validation statements, tokenised."""
        return self._batches("validation", self.splits.validation)

    def _batches(self, name: str, split: StatementSplit) -> StatementBatches:
        config, left_out = self.model_config, self.data_config.input == "images"
        said = ["" if left_out else one.sentence for one in split.statements]
        texts, blank = self.framed(name, STATEMENTS, said), self.reading.blank
        return StatementBatches(split, texts, config.image_tokens, blank)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return statements in random order, their images augmented."""
        transform = WholeImageAugmentation(self.reading, self.data_config.augmentation)
        return self.train.training(self._seen(transform), batch_size, seed)

    def _seen(self, transform: Transform) -> Transform:
        """Return what is done to an image: nothing is seen of it if statements alone are read."""
        if self.data_config.input != "statement":
            return transform
        return lambda picture, random: self.reading.blank

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return black images with the longest statements."""
        count = examples * IMAGES
        texts = self.longest_texts(count)
        return {
            "images": self.black_images(count),
            "samples": join_samples(self.model_config.image_tokens, paired=texts),
            "labels": torch.zeros(examples, dtype=torch.long),
            "broken": torch.zeros(examples, dtype=torch.bool),
        }

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Sum the cross-entropy of the statements; "accuracy" is logged with it.

        "broken" is the share of statements that stand in the place of others whose images could
        not be read.
        """
        logits, labels = model(batch["images"], batch["samples"]).float(), batch["labels"]
        right = (logits.detach().argmax(-1) == labels).sum()
        total = F.cross_entropy(logits, labels, reduction="sum")
        logs = {"accuracy": right, "broken": batch["broken"].sum()}
        return Loss(total, torch.ones_like(labels).sum(), logs, units=len(labels))

    def validation_batches(self) -> Sequence[dict[str, Any]]:
        """Return the validation statements, in mixed order."""
        return self.validation.evaluation(self._seen(WholeImage(self.reading)), EVALUATION_BATCH)

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        """Sum losses and right answers; one about an image that can't be read is wrong."""
        logits, labels = model(batch["images"], batch["samples"]).float(), batch["labels"]
        right = (logits.argmax(-1) == labels) & ~batch["broken"]
        sums = {
            "loss": F.cross_entropy(logits, labels, reduction="sum"),
            "right": right.sum(),
            "count": torch.ones_like(labels).sum(),
            "broken": batch["broken"].sum(),
        }
        return Scores(sums, (batch["rows"], right))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return "loss", "accuracy" and "consistency"; "broken" statements, if there are any."""
        rows, right = (torch.cat(parts).numpy() for parts in zip(*predictions, strict=True))
        statements = self.splits.validation.statements
        found = {
            "loss": sums["loss"] / sums["count"],
            "accuracy": sums["right"] / sums["count"],
            "consistency": consistency([statements[row].said for row in rows], right),
        }
        return found | ({"broken": sums["broken"]} if sums["broken"] else {})

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the labels' frequencies and the scores of the commoner label."""
        train = count_numbers(self.splits.train.labels, len(ANSWERS))
        plans: Any = self.validation_batches()
        rows = np.concatenate(list(islice(plans.plans, limit)))
        labels = self.splits.validation.labels[rows]
        right = labels == train.argmax()
        nats = frequency_nats(train, count_numbers(labels, len(ANSWERS)))
        sums = {"loss": nats, "right": int(right.sum()), "count": len(rows), "broken": 0}
        return self.summarise(sums, [(torch.from_numpy(rows), torch.from_numpy(right))])

    def images_together(self) -> int:
        """Return how many images a statement is about."""
        return IMAGES

    @torch.no_grad()
    def predict(self, model: nn.Module, pictures: Sequence[Picture], text: str) -> list[Prediction]:
        """Judge a statement about images: how probable it is that it is true, and false.

        Args:
            model: With a run's weights, in evaluation mode.
            pictures: That can be decoded: as many as a statement is about, left before right, or
                several times as many.
            text: The statement.

        Returns:
            Of each picture what is said of those that it belongs to.

        Raises:
            ValueError: If the model reads shorter statements.
        """
        config, random = self.model_config, np.random.default_rng(0)
        normalisation = self.data_config.normalisation
        transform = WholeImage(Reading(config.image_size, config.channels, normalisation))
        images = torch.from_numpy(np.stack([transform(each, random) for each in pictures]))
        samples = join_samples(
            config.image_tokens, paired=[self.framed_whole(text, "statement")] * len(pictures)
        )
        device = next(model.parameters()).device
        shares = model(images.to(device), samples.to(device)).float().softmax(1).cpu()
        said = [sorted(zip(ANSWERS, row, strict=True), key=lambda pair: -pair[1])
                for row in shares.tolist()]  # fmt: skip
        return [Prediction(labels) for labels in said for _ in range(IMAGES)]


def figures(task: VisualReasoning, model: nn.Module) -> Sequence[Figure]:
    """Return where the words of some statements look in their images."""
    transform = task._seen(WholeImage(task.reading))
    return statement_figures(model, task.validation, transform, task.tokenizer, task.reading)
