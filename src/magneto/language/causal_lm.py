"""Causal language modelling: predict the next token (paper, section 4.1)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.batching import cut_windows, window_batch
from magneto.language.model import LanguageModel
from magneto.language.text_task import TextTask
from magneto.progress import SILENT, Progress
from magneto.training.task import BatchStream, Loss

# Sequences of an evaluation batch.
EVALUATION_BATCH = 16


class CausalLanguageModeling(TextTask):
    """Packed text, a `LanguageModel`, cross-entropy in nats per token."""

    def build_model(self) -> LanguageModel:
        """Build the model, with the tokenizer's vocabulary if none is set."""
        return LanguageModel(replace(self.model_config, vocab_size=self.vocabulary()))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return packed windows in random order."""
        return self.windows(self.data_config.max_length, batch_size, seed)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the batch's tokens."""
        loss = model(batch["tokens"], self.attention_mask(batch["tokens"]), batch["targets"])
        return Loss(loss.total, loss.count)

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        limit: int | None = None,
        progress: Progress = SILENT,
    ) -> dict[str, float]:
        """Return loss (nats per token), perplexity, and bits per byte of text.

        Bits per byte spreads the nats of all tokens, ends of documents included, over the bytes of
        the documents; under a `limit` it uses the split's mean bytes per token.
        """
        split, length = self.text.validation, self.data_config.max_length
        numbers = np.arange(cut_windows(split.tokens, length))
        batches = np.array_split(numbers, math.ceil(len(numbers) / EVALUATION_BATCH))[:limit]
        total = count = torch.zeros((), device=device, dtype=torch.float64)
        for done, rows in enumerate(batches, 1):
            batch = {k: v.to(device) for k, v in window_batch(split.tokens, length, rows).items()}
            loss = self.loss(model, batch)
            total, count = total + loss.total.double(), count + loss.count.double()
            progress.update("evaluating batches", done, len(batches))
        loss_per_token = (total / count).item()
        bytes_per_token = split.text_bytes / len(split.tokens)
        return {
            "loss": loss_per_token,
            "perplexity": math.exp(min(loss_per_token, 700.0)),
            "bits_per_byte": loss_per_token / math.log(2) / bytes_per_token,
        }
