"""Masked language modelling: guess hidden tokens from both sides (paper, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.tokenizer import load_tokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.causal_lm import TextTask
from magneto.language.config import MaskedTextDataConfig
from magneto.language.masking import Masking
from magneto.language.models import MaskedLanguageModel
from magneto.progress import SILENT, Progress
from magneto.training.task import Loss, Scores


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

    @property
    def length(self) -> int:
        """Tokens of a window: `<s>` stands before it."""
        return self.data_config.max_length - 1

    def make(self, windows: np.ndarray, seeds: Iterable[tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the windows behind a `<s>`, other tokens hidden each time they come."""
        begin = np.full((len(windows), 1), self.tokenizer.begin, windows.dtype)
        return self.masking.batch(np.concatenate([begin, windows[:, :-1]], axis=1), seeds)

    @property
    def allowed(self) -> np.ndarray:
        """Which tokens can be hidden, (vocabulary,): no special one ever is."""
        return self.masking.plain

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return rows of one token with as many hidden as there may be."""
        shapes = {"tokens": self.data_config.max_length, "positions": self.masking.most,
                  "targets": self.masking.most}  # fmt: skip
        return {
            name: torch.zeros(examples, length, dtype=torch.long) for name, length in shapes.items()
        }

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the hidden tokens."""
        mask = self.attention_mask(batch["tokens"])
        loss = model(batch["tokens"], mask, batch["positions"], batch["targets"])
        return Loss(loss.total, loss.count, units=batch["tokens"].numel())

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
