"""Batches of questions and their images: shuffled and augmented, or fixed for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.batch import LazyBatches, mixed_plans
from magneto.data.stream import BatchStream, example_stream, shuffled
from magneto.vision.batches import Transform, read_or_blank, read_or_replace
from magneto.vision_language.question_answering.questions import QuestionSplit
from magneto.vision_language.question_answering.targets import Targets
from magneto.vision_language.samples import join_samples


@dataclass(frozen=True)
class QuestionBatches:
    """Makes batches of a split's questions.

    A batch has "images" (questions, channels, height, width); "samples", the questions beside them;
    "targets" (questions, answers); "rows", the questions' numbers; and "broken": True where a
    training image could not be read and another question stands in its place, or where a
    validation image could not be read and is blank.

    Attributes:
        split: Of questions.
        tokens: Of each, int64, `<s>` and `</s>` included.
        targets: Of each.
        transform: What is done to an image.
        blank: Stands for an image that can't be read.
        image_tokens: Vision tokens of an image.
    """

    split: QuestionSplit
    tokens: Sequence[np.ndarray]
    targets: Targets
    transform: Transform
    blank: np.ndarray
    image_tokens: int

    def training(self, batch_size: int, seed: int) -> BatchStream:
        """Return shuffled batches without end."""

        def image(index: int, random: np.random.Generator) -> dict[str, Any]:
            return {"image": self._read(index, random)}

        def make(numbers: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
            made = [
                read_or_replace(
                    image, len(self.split), int(number), (seed, int(draw)), self.split.broken
                )
                for number, draw in zip(numbers, draws, strict=True)
            ]
            rows = np.array([row for _, row in made], np.int64)
            images = np.stack([values["image"] for values, _ in made])
            return self.batch(rows, torch.from_numpy(images), torch.from_numpy(rows != numbers))

        return example_stream(shuffled(len(self.split), batch_size, seed), make)

    def evaluation(self, batch_size: int) -> LazyBatches:
        """Return all questions in mixed order."""
        return LazyBatches(mixed_plans(len(self.split), batch_size), self.fixed)

    def fixed(self, rows: np.ndarray) -> dict[str, Any]:
        """Return the batch of some questions; nothing is drawn."""
        seen = read_or_blank(self._read, rows, self.blank, self.split.broken)
        return self.batch(rows, seen["images"], seen["broken"])

    def batch(self, rows: np.ndarray, images: Tensor, broken: Tensor) -> dict[str, Any]:
        """Return the batch of some questions with their images."""
        return {
            "images": images,
            "samples": join_samples(self.image_tokens, paired=[self.tokens[row] for row in rows]),
            "targets": torch.from_numpy(self.targets.dense(rows)),
            "rows": torch.from_numpy(rows),
            "broken": broken,
        }

    def _read(self, row: int, random: np.random.Generator) -> np.ndarray:
        return self.transform(self.split.open(row), random)
