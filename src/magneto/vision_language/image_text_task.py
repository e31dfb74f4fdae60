"""What all tasks over images with texts share: their rows, the tokenizer of the texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from magneto.data.problems import Counts
from magneto.data.tokenizer import Tokenizer, vocabulary_size
from magneto.language.text import build_tokenizer
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, Task
from magneto.vision.input_size import FIELDS, resolve_input
from magneto.vision.transforms import Reading

# Rows of an evaluation batch.
EVALUATION_BATCH = 64


class ImageTextTask(Task):
    """A task over images with texts: a `VisionLanguageConfig` and an `ImageTextDataConfig`.

    Attributes:
        words, rows: What the texts and the rows of the data are, in the plural, for messages.
    """

    words: ClassVar[str] = "texts"
    rows: ClassVar[str] = "rows"

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self._prepared = False

    @cached_property
    def splits(self) -> Any:
        """Training and validation rows; read when they are first asked for."""
        return self.read_splits()

    @abstractmethod
    def read_splits(self) -> Any:
        """Read the data; return "train" and "validation", both `ImageRows`."""

    @abstractmethod
    def training_texts(self) -> Iterable[str]:
        """Return the texts that a tokenizer is learnt from."""

    @property
    def tokenizer_name(self) -> str:
        """What the data's tokenizer is, as a recipe says it."""
        return self.data_config.tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that is named, or one learnt from training texts."""
        name, size = self.tokenizer_name, self.data_config.vocab_size
        texts = self.training_texts() if name == "bpe" else ()
        return build_tokenizer(name, size, texts, self._progress)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the data; see that model, data and the run to begin with fit together.

        Raises:
            FileNotFoundError: If something is not there.
            ValueError: If something doesn't fit.
        """
        if not self._prepared:
            self._prepared, self._progress = True, progress
            self.model_config = resolve_input(
                self.model_config, self.splits.train.images[0], self.shared_input, progress
            )
            self.check_data()
            vocabulary_size(self.model_config.vocab_size, self.tokenizer)
            self.check_pretrained()

    def shared_input(self) -> tuple[Path, Any] | None:
        """Return the run whose image size this model shares, and its model's configuration."""
        return None

    def check_data(self) -> None:
        """Say what there is; raise ValueError if it doesn't fit the model."""
        found = self.splits
        parts = {f"{self.rows} to train on": len(found.train),
                 "to validate on": len(found.validation)}  # fmt: skip
        self._progress.say(
            f"{self.data_config.source}: {Counts(found.counts).describe_amounts(parts)}"
        )

    def check_pretrained(self) -> None:
        """Say what is taken of the run to begin with, if there may be one."""
        return None

    def sized_config(self) -> Any:
        """Return the model's configuration with a known vocabulary."""
        size = self.model_config.vocab_size or self.tokenizer.vocab_size
        return replace(self.model_config, vocab_size=size)

    def reading_of(self, peak: int = 255) -> Reading:
        """Return the form in which the model reads images whose brightest pixel is `peak`."""
        size, _, channels = self.model_config.input_sizes
        return Reading(size, channels, self.data_config.normalisation, peak)

    def black_images(self, count: int) -> Tensor:
        """Return images of the model's size, (count, channels, height, width)."""
        size, _, channels = self.model_config.input_sizes
        return torch.zeros(count, channels, size, size)

    def digests(self) -> list[str]:
        """Return what names the content of the data."""
        return [self.splits.train.digest, self.splits.validation.digest]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write the tokenizer, and what names the content of the data."""
        (directory / "tokenizer").mkdir()
        self.tokenizer.save(directory / "tokenizer")
        (directory / DIGEST_FILE).write_text(" ".join(self.digests()), encoding="utf-8")
        sizes = {f"model.{name}": getattr(self.model_config, name) for name in FIELDS}
        return {"data.tokenizer": directory / "tokenizer", **sizes}
