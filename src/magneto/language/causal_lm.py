"""Causal language modelling: predict the next token (paper, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from magneto.data.frequencies import count_numbers, count_targets, frequency_nats
from magneto.data.lazy_batches import LazyBatches
from magneto.data.stream import BatchStream
from magneto.data.windows import cut_windows, windows_of, with_targets
from magneto.language.model import LanguageModel
from magneto.language.text_task import TextTask
from magneto.training.task import Loss, Scores

# Sequences of an evaluation batch.
EVALUATION_BATCH = 16


class CausalLanguageModeling(TextTask):
    """Packed text, a `LanguageModel`, cross-entropy in nats per token."""

    def build_model(self) -> LanguageModel:
        """Build the model, with the tokenizer's vocabulary if none is set."""
        return LanguageModel(replace(self.model_config, vocab_size=self.vocabulary()))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return packed windows in random order."""
        length = self.data_config.max_length
        return self.windows(length, batch_size, seed, lambda windows, *_: with_targets(windows))

    def example_batch(self, examples: int) -> dict[str, Tensor]:
        """Return windows of one token, without text."""
        self.assume_tokenizer()
        windows = np.zeros((examples, self.data_config.max_length + 1), np.int64)
        return with_targets(windows)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the batch's tokens."""
        loss = model(batch["tokens"], self.attention_mask(batch["tokens"]), batch["targets"])
        return Loss(loss.total, loss.count)

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        """Return the windows of the validation split, in their order."""
        tokens, length = self.text.validation.tokens, self.data_config.max_length
        numbers = np.arange(cut_windows(tokens, length))
        plans = np.array_split(numbers, math.ceil(len(numbers) / EVALUATION_BATCH))
        return LazyBatches(plans, lambda rows: with_targets(windows_of(tokens, length, rows)))

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Sum the cross-entropy, and count the tokens."""
        loss = self.loss(model, batch)
        return Scores({"loss": loss.total, "count": loss.count})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss (nats per token), perplexity, and bits per byte of text.

        Bits per byte spreads the nats of all tokens, ends of documents included, over the bytes of
        the documents; under a limit it uses the split's mean bytes per token.
        """
        split, loss = self.text.validation, sums["loss"] / sums["count"]
        bytes_per_token = split.text_bytes / len(split.tokens)
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss / math.log(2) / bytes_per_token,
        }

    def _baseline(self, limit: int | None) -> dict[str, float]:
        size = self.tokenizer.vocab_size
        train = count_numbers(self.text.train.tokens, size)
        asked = count_targets(self.validation_batches(), size, limit)
        nats = frequency_nats(train, asked)
        return self.summarise({"loss": nats, "count": float(asked.sum())}, ())
