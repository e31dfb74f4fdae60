"""What the tasks over packed text share: the tokenised corpus and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from magneto.data.assumed_tokenizer import assume_tokenizer
from magneto.data.batching import ShuffledExamples, StreamedWindows, cut_windows, window_batch
from magneto.data.counts import Counts
from magneto.data.documents import DOCUMENTS
from magneto.data.tokenizer import Tokenizer, kept_tokenizer, load_tokenizer, vocabulary_size
from magneto.language.config import TextDataConfig
from magneto.language.text import PreparedText, prepare_text, split_documents, tokenised
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, BatchStream, Task


class TextTask(Task):
    """A task over documents, tokenised and packed into windows of equal length."""

    unit = "tokens"

    def __init__(self, model: Any, data: TextDataConfig, seed: int) -> None:
        super().__init__(model, data, seed)
        self._progress: Progress = SILENT

    @cached_property
    def text(self) -> PreparedText:
        """The tokenised corpus."""
        return prepare_text(self.data_config, self._progress)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The text's tokenizer; without touching the text, unless it is trained on it."""
        if self.data_config.tokenizer == "bpe":
            return self.text.tokenizer
        return load_tokenizer(self.data_config.tokenizer)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Tokenise the source, unless it was done before."""
        if "text" in self.__dict__:
            return
        self._progress = progress
        counts, tokens = self.text.counts, f"{len(self.text.train.tokens):,} tokens"
        progress.say(f"{self.data_config.source}: {counts.describe(DOCUMENTS)}, {tokens}")

    def assume_tokenizer(self) -> None:
        """Let the text's tokenizer be one of the size that the configuration says."""
        data, size = self.data_config, self.model_config.vocab_size
        self.tokenizer = assume_tokenizer(data.tokenizer, ("bpe",), data.vocab_size, size)

    def vocabulary(self) -> int:
        """Return the model's vocabulary: the tokenizer's, if none is set.

        Raises:
            ValueError: If the one set is too small.
        """
        return vocabulary_size(self.model_config.vocab_size, self.tokenizer)

    def windows(self, length: int, batch_size: int, seed: int) -> BatchStream:
        """Return training windows of `length` tokens, each with its next, in random order."""
        if self.data_config.streaming:
            return StreamedWindows(
                self._train_documents, self._encode, length,
                self.data_config.shuffle_documents, batch_size, seed,
            )  # fmt: skip
        tokens = self.text.train.tokens
        count = cut_windows(tokens, length)
        return ShuffledExamples(
            count, batch_size, seed, lambda numbers: window_batch(tokens, length, numbers)
        )

    def _train_documents(self) -> Iterator[str]:
        return split_documents(self.data_config, "train", Counts())

    def _encode(self, texts: list[str]) -> np.ndarray:
        return np.concatenate([part for part, _ in tokenised(texts, self.tokenizer)])

    def attention_mask(self, tokens: Tensor) -> Tensor | None:
        """Return who may attend to whom: nothing to say, unless documents are kept apart."""
        return self._document_mask(tokens) if self.data_config.mask_documents else None

    def _document_mask(self, tokens: Tensor) -> Tensor:
        """Return (batch, length, length): True where both tokens are of one document."""
        ends = tokens == self.tokenizer.end
        document = ends.cumsum(1) - ends.long()
        return document[:, :, None] == document[:, None]

    def size(self, batch: dict[str, Tensor]) -> int:
        """Return the batch's tokens."""
        return batch["tokens"].numel()

    def artifacts(self, directory: Path) -> None:
        """Write the tokenizer."""
        (directory / "tokenizer").mkdir(exist_ok=True)
        self.tokenizer.save(directory / "tokenizer")
        (directory / DIGEST_FILE).write_text(self.text.digest, encoding="utf-8")

    @classmethod
    def kept_settings(cls, run: Path) -> dict[str, Any]:
        """Return the run's own tokenizer, whatever has become of the text."""
        return kept_tokenizer(run)

    @classmethod
    def other_data(cls, source: str) -> dict[str, Any]:
        """Return what measures a run on all of another text."""
        return {"data.source": source, "data.validation_source": source}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the metrics of the training split's token frequencies; none of streamed text."""
        return {} if self.data_config.streaming else self._baseline(limit)

    def _baseline(self, limit: int | None) -> dict[str, float]:
        raise NotImplementedError

    def documents(self, split: str) -> list[str]:
        """Return the text of "train" or "validation"."""
        return list(split_documents(self.data_config, split, Counts()))
