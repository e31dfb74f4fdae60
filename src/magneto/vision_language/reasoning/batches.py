"""Batches of statements with their images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from magneto.data.batch import LazyBatches, mixed_plans
from magneto.data.stream import BatchStream
from magneto.vision.batches import Transform, example_stream, read_or_blank
from magneto.vision_language.reasoning.config import IMAGES
from magneto.vision_language.reasoning.statements import StatementSplit
from magneto.vision_language.samples import join_samples


@dataclass(frozen=True)
class StatementBatches:
    """Makes batches of a split.

    A batch has "images" (statements * images, channels, height, width), "samples" (each image with
    its statement), "labels" (statements), "rows" (statements; numbers of the statements in the
    split) and "broken" (statements).

    Attributes:
        split: Of statements.
        texts: Tokens of each statement, `<s>` ... `</s>`.
        image_tokens: Vision tokens of an image.
        blank: What stands for an image that can't be read.
    """

    split: StatementSplit
    texts: Sequence[np.ndarray]
    image_tokens: int
    blank: np.ndarray

    def training(self, transform: Transform, batch_size: int, seed: int) -> BatchStream:
        """Return shuffled batches. In the place of one that is broken stands another statement."""

        def example(row: int, random: np.random.Generator) -> dict[str, Any]:
            return {"images": self._images(row, transform, random), "rows": row}

        return example_stream(
            len(self.split), example, batch_size, seed,
            finish=lambda batch, *_: self._whole(batch), broken=self.split.broken,
        )  # fmt: skip

    def evaluation(self, transform: Transform, batch_size: int) -> LazyBatches:
        """Return the statements in mixed order; what is broken or missing is blank, and marked."""
        plans = mixed_plans(len(self.split), batch_size)
        return LazyBatches(plans, lambda rows: self.fixed(rows, transform))

    def fixed(self, rows: np.ndarray, transform: Transform) -> dict[str, Any]:
        """Return the batch of some statements; nothing is drawn."""

        def read(row: int, random: np.random.Generator) -> np.ndarray:
            return self._images(row, transform, random)

        blank = np.stack([self.blank] * IMAGES)
        seen = read_or_blank(read, rows, blank, self.split.broken)
        return self._whole({**seen, "rows": torch.from_numpy(rows)})

    def _images(self, row: int, transform: Transform, random: np.random.Generator) -> np.ndarray:
        """Return the images of a statement, (images, channels, height, width)."""
        return np.stack([transform(picture, random) for picture in self.split.open(row)])

    def _whole(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add texts and labels, by "rows"."""
        rows = batch["rows"].numpy()
        pairs = [self.texts[row] for row in rows for _ in range(IMAGES)]
        return {
            **batch,
            "images": batch["images"].flatten(0, 1),
            "samples": join_samples(self.image_tokens, paired=pairs),
            "labels": torch.from_numpy(self.split.labels[rows]),
        }
