"""Masked language modelling: guess hidden tokens from both sides (paper, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.batch import EVALUATION_SEED, LazyBatches
from magneto.data.frequencies import count_numbers, count_targets, frequency_nats
from magneto.data.stream import BatchStream
from magneto.data.tokenizer import load_tokenizer
from magneto.data.windows import cut_windows, windows_of
from magneto.functional.cross_entropy import IGNORED
from magneto.language.causal_lm import TextTask
from magneto.language.config import MaskedTextDataConfig
from magneto.language.masking import Masking
from magneto.language.models import MaskedLanguageModel
from magneto.progress import SILENT, Progress
from magneto.training.task import Loss, Scores

# Sequences of an evaluation batch; and such batches that the plateau is measured on.
EVALUATION_BATCH = 16


class MaskedLanguageModeling(TextTask):
    """Packed text after a `<s>`, a `MaskedLanguageModel`, nats per hidden token."""

    data_config: MaskedTextDataConfig

    def prepare(self, progress: Progress = SILENT) -> None:
        """Tokenise the source; raises ValueError if the tokenizer has no mask token."""
        if self.data_config.tokenizer != "bpe":  # known before the work, not after it
            Masking(self.data_config, load_tokenizer(self.data_config.tokenizer))
        super().prepare(progress)

    @cached_property
    def masking(self) -> Masking:
        """What hides tokens."""
        return Masking(self.data_config, self.tokenizer)

    def build_model(self) -> MaskedLanguageModel:
        """Build the model, with the tokenizer's vocabulary if none is set."""
        return MaskedLanguageModel(replace(self.model_config, vocab_size=self.vocabulary()))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return packed windows in random order, other tokens hidden each time they come."""

        def make(windows: np.ndarray, numbers: np.ndarray, draws: np.ndarray) -> dict[str, Tensor]:
            seeds = [(seed, *map(int, key)) for key in zip(draws, numbers, strict=True)]
            return self.masking.batch(self._begun(windows[:, :-1]), seeds)

        return self.windows(self.data_config.max_length - 1, batch_size, seed, make)

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return rows of one token with as many hidden as there may be."""
        shapes = {"tokens": self.data_config.max_length, "positions": self.masking.most,
                  "targets": self.masking.most}  # fmt: skip
        return {
            name: torch.zeros(examples, length, dtype=torch.long) for name, length in shapes.items()
        }

    def _begun(self, rows: np.ndarray) -> np.ndarray:
        """Put the token that begins an input before each row."""
        first = np.full((len(rows), 1), self.tokenizer.begin, rows.dtype)
        return np.concatenate([first, rows], axis=1)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the hidden tokens."""
        mask = self.attention_mask(batch["tokens"])
        loss = model(batch["tokens"], mask, batch["positions"], batch["targets"])
        return Loss(loss.total, loss.count, units=batch["tokens"].numel())

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        """Return the windows of the validation split, in their order.

        The same tokens are hidden each time, whatever the recipe's seed.
        """
        tokens, length = self.text.validation.tokens, self.data_config.max_length - 1
        numbers = np.arange(cut_windows(tokens, length))
        plans = np.array_split(numbers, math.ceil(len(numbers) / EVALUATION_BATCH))

        def make(rows: np.ndarray) -> dict[str, Tensor]:
            seeds = [(EVALUATION_SEED, int(number)) for number in rows]
            return self.masking.batch(self._begun(windows_of(tokens, length, rows)[:, :-1]), seeds)

        return LazyBatches(plans, make)

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Sum the cross-entropy over the hidden tokens; count them, and those guessed right."""
        mask = self.attention_mask(batch["tokens"])
        logits = model(batch["tokens"], mask, batch["positions"]).flatten(0, 1).float()
        answers = batch["targets"].flatten()
        total = F.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum")
        right = (logits.argmax(-1) == answers).sum()
        return Scores({"loss": total, "right": right, "count": (answers != IGNORED).sum()})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss (nats per hidden token), perplexity, and the share guessed right."""
        loss = sums["loss"] / sums["count"]
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "masked_accuracy": sums["right"] / sums["count"],
        }

    def _baseline(self, limit: int | None) -> dict[str, float]:
        # No special token is ever hidden.
        plain, size = self.masking.plain, self.tokenizer.vocab_size
        train = count_numbers(self.text.train.tokens, size)
        asked = count_targets(self.validation_batches(), size, limit)
        sums = {
            "loss": frequency_nats(train, asked, plain),
            "right": asked[(train * plain).argmax()],
            "count": asked.sum(),
        }
        return self.summarise({name: float(value) for name, value in sums.items()}, ())
