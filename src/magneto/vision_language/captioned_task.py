"""What tasks over images with captions share: retrieval and captioning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from magneto.data.counts import Counts
from magneto.data.stream import BatchStream
from magneto.vision_language.caption_sources import load_captions
from magneto.vision_language.captions import IMAGES, CaptionSplit, CaptionSplits
from magneto.vision_language.fine_tuned_task import FineTunedTask
from magneto.vision_language.whole_images import WholeImage, WholeImageAugmentation

# Images of an evaluation batch.
EVALUATION_BATCH = 64


class CaptionedTask(FineTunedTask):
    """A task over images with captions, several each: a `CaptionDataConfig`."""

    def read_splits(self) -> CaptionSplits:
        """Training and validation images with their captions."""
        return load_captions(self.data_config, self._progress)

    def training_texts(self) -> Iterable[str]:
        """Return the training captions."""
        return (text for row in self.splits.train.rows for text in row.captions)

    def check_data(self) -> None:
        """Say how much there is, and what was odd."""
        found = self.splits
        parts = {"images to train on": len(found.train), "to validate on": len(found.validation)}
        odd = Counts(found.counts)
        del odd[IMAGES]
        said = odd.beside(parts)
        self._progress.say(f"{self.data_config.source}: {said}")

    @cached_property
    def train(self) -> Any:
        """The training images, their captions tokenised."""
        return self._batches("training", self.splits.train)

    @cached_property
    def validation(self) -> Any:
        """The validation images, their captions tokenised."""
        return self._batches("validation", self.splits.validation)

    def _batches(self, name: str, split: CaptionSplit) -> Any:
        every = [text for row in split.rows for text in row.captions]
        texts = iter(self.framed(name, "captions", every))
        return self.batches(split, [[next(texts) for _ in row.captions] for row in split.rows])

    @abstractmethod
    def batches(self, split: CaptionSplit, texts: Sequence[Sequence[np.ndarray]]) -> Any:
        """Return what makes batches of a split, given the tokens of each image's captions."""

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return pairs in random order, their images augmented."""
        transform = WholeImageAugmentation(self.reading, self.data_config.augmentation)
        return self.train.training(transform, batch_size, seed)

    def validation_batches(self) -> Sequence[dict[str, Any]]:
        """Return the validation images in mixed order."""
        return self.validation.evaluation(WholeImage(self.reading), EVALUATION_BATCH)
