"""Base class of vision-language tasks: rows, tokenizer, input format."""

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
from magneto.vision.transforms import InputFormat

# Batch size of evaluation.
EVALUATION_BATCH = 64


class ImageTextTask(Task):
    """Task over images with texts: a `VisionLanguageConfig` and an `ImageTextDataConfig`.

    Attributes:
        words: Plural of what the texts are, for messages.
        rows: Plural of what the rows are, for messages.
    """

    words: ClassVar[str] = "texts"
    rows: ClassVar[str] = "rows"

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self._prepared = False

    @cached_property
    def splits(self) -> Any:
        """Training and validation rows, read on first use."""
        return self.read_splits()

    @abstractmethod
    def read_splits(self) -> Any:
        """Read the data; return `train` and `validation`, both `ImageRows`."""

    @abstractmethod
    def training_texts(self) -> Iterable[str]:
        """Return the texts on which a tokenizer is trained."""

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, as in a recipe."""
        return self.data_config.tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The named tokenizer, or one trained on the training texts."""
        name, size = self.tokenizer_name, self.data_config.vocab_size
        texts = self.training_texts() if name == "bpe" else ()
        return build_tokenizer(name, size, texts, self._progress)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the data, derive open sizes, check that model, data and pre-trained run fit; once.

        Raises:
            FileNotFoundError: If the source or the pre-trained run does not exist.
            ValueError: If they do not fit together.
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
        """Return a run whose image size this model must share, and its model's configuration."""
        return None

    def check_data(self) -> None:
        """Report the size of the data; raise ValueError if it does not fit the model."""
        found = self.splits
        parts = {f"training {self.rows}": len(found.train),
                 f"validation {self.rows}": len(found.validation)}  # fmt: skip
        self._progress.say(
            f"{self.data_config.source}: {Counts(found.counts).describe_amounts(parts)}"
        )

    def check_pretrained(self) -> None:
        """Check the pre-trained run and report what is loaded from it, if there is one."""
        return None

    def sized_config(self) -> Any:
        """Return the model's configuration with the size of the vocabulary."""
        size = self.model_config.vocab_size or self.tokenizer.vocab_size
        return replace(self.model_config, vocab_size=size)

    def input_format_of(self, peak: int = 255) -> InputFormat:
        """Return the input format of images whose largest possible pixel value is `peak`."""
        size, _, channels = self.model_config.input_sizes
        return InputFormat(size, channels, self.data_config.normalisation, peak)

    def black_images(self, count: int) -> Tensor:
        """Return black images of the model's size, (count, channels, height, width)."""
        size, _, channels = self.model_config.input_sizes
        return torch.zeros(count, channels, size, size)

    def digests(self) -> list[str]:
        """Return digests of the training and validation rows."""
        return [self.splits.train.digest, self.splits.validation.digest]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write the tokenizer and a digest of the data; return the sizes of the images."""
        (directory / "tokenizer").mkdir()
        self.tokenizer.save(directory / "tokenizer")
        (directory / DIGEST_FILE).write_text(" ".join(self.digests()), encoding="utf-8")
        sizes = {f"model.{name}": getattr(self.model_config, name) for name in FIELDS}
        return {"data.tokenizer": directory / "tokenizer", **sizes}
