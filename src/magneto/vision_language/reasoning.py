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

from magneto.data.stream import BatchStream
from magneto.functional.cross_entropy import count_numbers, frequency_nats
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.decoding import Picture
from magneto.vision.image_task import Prediction
from magneto.vision_language.config import IMAGES, StatementDataConfig, VisualReasonerConfig
from magneto.vision_language.finetuning import FineTunedTask
from magneto.vision_language.model import ANSWERS, VisualReasoner
from magneto.vision_language.samples import join_samples
from magneto.vision_language.statements import SIDES, load_statements
from magneto.vision_language.tables import ImageRows, RowSplits


class VisualReasoning(FineTunedTask):
    """Statements about images, a `VisualReasoner`; nats per statement."""

    primary_metric = "accuracy"
    unit = words = "statements"
    model_config: VisualReasonerConfig
    data_config: StatementDataConfig

    def read_splits(self) -> RowSplits:
        """Training and validation statements."""
        return load_statements(self.data_config, self.problems, self._progress)

    def training_texts(self) -> Iterable[str]:
        """Return the training statements."""
        return self.splits.train.values("statement")

    def check_data(self) -> None:
        """Say how many statements there are, and what was odd."""
        found = self.splits
        parts = {"statements to train on": len(found.train),
                 "to validate on": len(found.validation)}  # fmt: skip
        self._progress.say(f"{self.data_config.source}: {found.counts.beside(parts)}")

    def build_model(self) -> VisualReasoner:
        """Build the model; the encoder of a pre-trained run is in `initial_weights`."""
        return VisualReasoner(self.sized_config())

    @property
    def sees_images(self) -> bool:
        """Whether the model reads images, and not the statements alone."""
        return self.data_config.input != "statement"

    def tokenised(self, split: str, rows: ImageRows) -> list[np.ndarray]:
        """Return the tokens of each statement; of none of its words if images alone are read."""
        alone = self.data_config.input == "images"
        return self.framed(split, [""] * len(rows) if alone else rows.values("statement"))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return statements in random order, their images augmented."""
        rows, tokens = self.splits.train, self.train_tokens
        truths = np.array(rows.values("truth"), np.int64)
        return self.shuffled_rows(
            batch_size, seed, lambda batch, *_: self._whole(batch, tokens, truths)
        )

    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the statements and their labels to images of validation statements."""
        return self._whole(batch, self.validation_tokens, self._truths)

    @cached_property
    def _truths(self) -> np.ndarray:
        """Labels of the validation statements, int64."""
        return np.array(self.splits.validation.values("truth"), np.int64)

    def _whole(
        self, batch: dict[str, Any], tokens: Sequence[np.ndarray], truths: np.ndarray
    ) -> dict[str, Any]:
        """Return a batch with "samples", each image with its statement, and "labels".

        "images" (statements * images, channels, height, width) are left before right.
        """
        rows = batch["rows"].numpy()
        pairs = [tokens[row] for row in rows for _ in range(IMAGES)]
        return {
            **batch,
            "images": batch["images"].flatten(0, 1),
            "samples": join_samples(self.model_config.image_tokens, paired=pairs),
            "labels": torch.from_numpy(truths[rows]),
        }

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
        said = self.splits.validation.take(rows).values("said")
        found = {
            "loss": sums["loss"] / sums["count"],
            "accuracy": sums["right"] / sums["count"],
            "consistency": consistency(said, right),
        }
        return found | ({"broken": sums["broken"]} if sums["broken"] else {})

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the labels' frequencies and the scores of the commoner label."""
        truths = np.array(self.splits.train.values("truth"), np.int64)
        train = count_numbers(truths, len(ANSWERS))
        rows = np.concatenate([*islice(self.validation_batches().plans, limit)])
        labels = self._truths[rows]
        right = labels == train.argmax()
        nats = frequency_nats(train, count_numbers(labels, len(ANSWERS)))
        sums = {"loss": nats, "right": int(right.sum()), "count": len(rows), "broken": 0}
        return self.summarise(sums, [(torch.from_numpy(rows), torch.from_numpy(right))])

    def images_together(self) -> int:
        """Return how many images a statement is about."""
        return IMAGES

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[tuple[Picture, str]]) -> list[Prediction]:
        """Judge a statement about images: how probable it is that it is true, and false.

        Args:
            model: With a run's weights, in evaluation mode.
            inputs: Images that can be decoded, each with the statement: as many as it is about,
                left before right, or several times as many.

        Returns:
            Of each picture what is said of those that it belongs to.

        Raises:
            ValueError: If the model reads shorter statements.
        """
        texts = [self.framed_whole(text, "statement") for _, text in inputs]
        samples = join_samples(self.model_config.image_tokens, paired=texts)
        images = self.read_pictures([image for image, _ in inputs])
        device = next(model.parameters()).device
        shares = model(images.to(device), samples.to(device)).float().softmax(1).cpu()
        said = [sorted(zip(ANSWERS, row, strict=True), key=lambda pair: -pair[1])
                for row in shares.tolist()]  # fmt: skip
        return [Prediction(labels) for labels in said for _ in range(IMAGES)]


@torch.no_grad()
def figures(task: VisualReasoning, model: nn.Module) -> Sequence[Figure]:
    """Return where the words of some statements look in each of their images."""
    from magneto.vision_language.figures import attention_figure, some_rows

    held = task.splits.validation
    texts = held.values("statement")
    rows = some_rows(texts, task.validation_tokens)
    if not len(rows):
        return []
    batch, device = task.fixed_rows(rows), next(model.parameters()).device
    logits = model(batch["images"].to(device), batch["samples"].to(device))
    headings = [
        f"{texts[row]}   —   model: {ANSWERS[answer]}; it is {ANSWERS[truth]}"
        for row, answer, truth in zip(
            rows, logits.argmax(1).tolist(), batch["labels"].tolist(), strict=True
        )
    ]
    return attention_figure(model, batch, headings, task.tokenizer, task.reading, SIDES)


def consistency(said: Sequence[str], right: np.ndarray) -> float:
    """Return the share of sentences that are judged rightly everywhere they are said.

    Args:
        said: Of each answer, which sentence it is about.
        right: Whether it is right, boolean.
    """
    _, number = np.unique(np.array(said), return_inverse=True)
    wrong = np.bincount(number, weights=~right)
    return float((wrong == 0).mean())
