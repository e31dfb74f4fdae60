"""Causal language modelling: predict the next token (paper, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.batching import ShuffledExamples, StreamedWindows, cut_windows, window_batch
from magneto.data.sources import Counts
from magneto.data.text import (
    PreparedText,
    TextDataConfig,
    prepare_text,
    split_documents,
    tokenised,
)
from magneto.models.language import LanguageModel, LanguageModelConfig
from magneto.tasks.base import BatchStream, Loss, Progress, Task, silent

# Sequences of an evaluation batch.
EVALUATION_BATCH = 16


class CausalLanguageModeling(Task):
    """Packed text, a `LanguageModel`, cross-entropy in nats per token."""

    unit = "tokens"
    model_config = LanguageModelConfig
    data_config = TextDataConfig

    def __init__(self, model: LanguageModelConfig, data: TextDataConfig, seed: int) -> None:
        super().__init__(model, data, seed)
        self._progress: Progress = silent

    @cached_property
    def text(self) -> PreparedText:
        """The tokenised corpus."""
        return prepare_text(self.data, self._progress)

    def prepare(self, progress: Progress = silent) -> None:
        """Tokenise the source, unless it was done before."""
        if "text" in self.__dict__:
            return
        self._progress = progress
        say = getattr(progress, "say", None)
        counts = self.text.counts
        if say is not None:
            say(f"{self.data.source}: {counts.describe()}, {len(self.text.train.tokens):,} tokens")

    def build_model(self) -> LanguageModel:
        """Build the model, with the tokenizer's vocabulary if none is set."""
        size = self.model.vocab_size or self.text.tokenizer.vocab_size
        if size < self.text.tokenizer.vocab_size:
            raise ValueError(
                f"model.vocab_size ({size}) is below the tokenizer's "
                f"({self.text.tokenizer.vocab_size})"
            )
        return LanguageModel(replace(self.model, vocab_size=size))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return packed windows in random order."""
        tokens, length = self.text.train.tokens, self.data.length
        if self.data.streaming:
            return StreamedWindows(
                self._train_documents, self._encode, length,
                self.data.shuffle_documents, batch_size, seed,
            )  # fmt: skip
        count = cut_windows(tokens, length)
        return ShuffledExamples(
            count, batch_size, seed, lambda numbers: window_batch(tokens, length, numbers)
        )

    def _train_documents(self) -> Iterator[str]:
        return split_documents(self.data, "train", Counts())

    def _encode(self, texts: list[str]) -> np.ndarray:
        return np.concatenate([part for part, _ in tokenised(texts, self.text.tokenizer)])

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the batch's tokens."""
        mask = self._document_mask(batch["tokens"]) if self.data.mask_documents else None
        loss = model(batch["tokens"], mask, batch["targets"])
        return Loss(loss.total, loss.count)

    def _document_mask(self, tokens: Tensor) -> Tensor:
        """Return (batch, length, length): True where both tokens are of one document."""
        ends = tokens == self.text.tokenizer.end
        document = ends.cumsum(1) - ends.long()
        return document[:, :, None] == document[:, None]

    def size(self, batch: dict[str, Tensor]) -> int:
        """Return the batch's tokens."""
        return batch["tokens"].numel()

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        limit: int | None = None,
        progress: Progress = silent,
    ) -> dict[str, float]:
        """Return loss (nats per token), perplexity, and bits per byte of text.

        Bits per byte spreads the nats of all tokens, ends of documents included, over the bytes of
        the documents; under a `limit` it uses the split's mean bytes per token.
        """
        split, length = self.text.validation, self.data.length
        numbers = np.arange(cut_windows(split.tokens, length))
        batches = np.array_split(numbers, math.ceil(len(numbers) / EVALUATION_BATCH))[:limit]
        total = count = torch.zeros((), device=device, dtype=torch.float64)
        for done, rows in enumerate(batches, 1):
            batch = {k: v.to(device) for k, v in window_batch(split.tokens, length, rows).items()}
            loss = self.loss(model, batch)
            total, count = total + loss.total.double(), count + loss.count.double()
            progress("evaluating batches", done, len(batches))
        loss_per_token = (total / count).item()
        bytes_per_token = split.text_bytes / len(split.tokens)
        return {
            "loss": loss_per_token,
            "perplexity": math.exp(min(loss_per_token, 700.0)),
            "bits_per_byte": loss_per_token / math.log(2) / bytes_per_token,
        }

    def artifacts(self, directory: Path) -> None:
        """Write the tokenizer."""
        (directory / "tokenizer").mkdir(exist_ok=True)
        self.text.tokenizer.save(directory / "tokenizer")

    def documents(self, split: str) -> list[str]:
        """Return the text of "train" or "validation"."""
        return list(split_documents(self.data, split, Counts()))
