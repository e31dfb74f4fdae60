"""Masked language modelling: guess hidden tokens from both sides (paper, section 4.2)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.batching import NumberedRows, cut_windows, window_batch
from magneto.data.tokenizer import load_tokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import MaskedTextDataConfig
from magneto.language.masked_language import MaskedLanguageModel
from magneto.language.masking import Masking
from magneto.language.text_task import TextTask
from magneto.progress import SILENT, Progress
from magneto.training.task import BatchStream, Loss

# Sequences of an evaluation batch.
EVALUATION_BATCH = 16
# Of what is hidden in evaluation: one number for all runs, so that they answer the same questions.
EVALUATION_SEED = 0


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

        def make(piece: dict[str, Tensor], numbers: np.ndarray) -> dict[str, Tensor]:
            seeds = [(seed, int(number)) for number in numbers]
            return self.masking.batch(self._begun(piece["tokens"].numpy()), seeds)

        return NumberedRows(
            self.windows(self.data_config.max_length - 1, batch_size, seed), batch_size, make
        )

    def _begun(self, rows: np.ndarray) -> np.ndarray:
        """Put the token that begins an input before each row."""
        first = np.full((len(rows), 1), self.tokenizer.begin, rows.dtype)
        return np.concatenate([first, rows], axis=1)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the hidden tokens."""
        mask = self.attention_mask(batch["tokens"])
        loss = model(batch["tokens"], mask, batch["positions"], batch["targets"])
        return Loss(loss.total, loss.count)

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        limit: int | None = None,
        progress: Progress = SILENT,
    ) -> dict[str, float]:
        """Return loss (nats per hidden token), perplexity, and the share guessed right.

        The same tokens are hidden each time, whatever the recipe's seed.
        """
        batches = self.evaluation_batches(limit)
        sums = torch.zeros(3, device=device, dtype=torch.float64)
        for done, rows in enumerate(batches, 1):
            batch = {k: v.to(device) for k, v in self.evaluation_batch(rows).items()}
            mask = self.attention_mask(batch["tokens"])
            logits = model(batch["tokens"], mask, batch["positions"]).flatten(0, 1).float()
            answers = batch["targets"].flatten()
            total = F.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum")
            right = (logits.argmax(-1) == answers).sum()
            sums += torch.stack([total, right, (answers != IGNORED).sum()]).double()
            progress.update("evaluating batches", done, len(batches))
        total, right, count = sums.tolist()
        return {
            "loss": total / count,
            "perplexity": math.exp(min(total / count, 700.0)),
            "masked_accuracy": right / count,
        }

    def evaluation_batches(self, limit: int | None = None) -> list[np.ndarray]:
        """Return the window numbers of each evaluation batch."""
        numbers = np.arange(
            cut_windows(self.text.validation.tokens, self.data_config.max_length - 1)
        )
        return np.array_split(numbers, math.ceil(len(numbers) / EVALUATION_BATCH))[:limit]

    def evaluation_batch(self, numbers: np.ndarray) -> dict[str, Tensor]:
        """Return numbered windows of the validation split, with their hidden tokens."""
        tokens = self.text.validation.tokens
        rows = window_batch(tokens, self.data_config.max_length - 1, numbers)["tokens"].numpy()
        return self.masking.batch(
            self._begun(rows), [(EVALUATION_SEED, int(number)) for number in numbers]
        )
