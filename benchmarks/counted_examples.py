"""A small language model over numbered examples, whose ranks note each example they train on.

`killed_ranks.py` trains it by `magneto train` and counts what was noted. Each process writes a file
`ATTEMPT.RESTART-RANK-PID` in the folder `$COUNTED_EXAMPLES`, a line for each step: the numbers of
its examples.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.batching import ShuffledExamples
from magneto.data.lazy_batches import LazyBatches
from magneto.language.config import LanguageModelConfig
from magneto.language.model import LanguageModel
from magneto.training.task import BatchStream, Loss, Scores, Task

FOLDER, ATTEMPT = "COUNTED_EXAMPLES", "COUNTED_ATTEMPT"


@dataclass(frozen=True)
class CountedData:
    """Examples of random tokens.

    Attributes:
        source: Nothing; every task has one.
        examples: How many there are.
        length: Tokens of each.
        pause: Seconds that a step takes at least, so that a kill finds it in its midst.
    """

    source: str = "counted"
    examples: int = 480
    length: int = 16
    pause: float = 0.02


class CountedExamples(Task):
    """Predict the next of random tokens; note whose turn it was."""

    ModelConfig, DataConfig = LanguageModelConfig, CountedData

    @cached_property
    def notes(self) -> TextIO:
        """Where this process notes its examples."""
        environment = os.environ
        restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = f"{environment[ATTEMPT]}.{restart}-{environment.get('RANK', '0')}-{os.getpid()}"
        return (Path(environment[FOLDER]) / name).open("a", buffering=1, encoding="ascii")

    def make(self, numbers: np.ndarray) -> dict[str, Tensor]:
        """Return the examples of these numbers."""
        length, size = self.data_config.length + 1, self.model_config.vocab_size
        rows = [np.random.default_rng([5, n]).integers(size, size=length) for n in numbers]
        made = torch.from_numpy(np.stack(rows))
        return {"tokens": made[:, :-1], "targets": made[:, 1:], "numbers": torch.tensor(numbers)}

    def build_model(self) -> LanguageModel:
        """Build it."""
        return LanguageModel(self.model_config)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return the examples in random order."""
        return ShuffledExamples(self.data_config.examples, batch_size, seed, self.make)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy; note the examples, except where operations are only counted."""
        if model.training and not batch["numbers"].is_meta:
            print(*batch["numbers"].tolist(), file=self.notes)
            time.sleep(self.data_config.pause)
        loss = model(batch["tokens"], targets=batch["targets"])
        return Loss(loss.total, loss.count)

    def size(self, batch: dict[str, Tensor]) -> int:
        """Return the examples of a batch."""
        return len(batch["numbers"])

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        """Return the first examples."""
        return LazyBatches(np.array_split(np.arange(16), 4), self.make)

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Sum the cross-entropy, and count the tokens."""
        loss = self.loss(model, batch)
        return Scores({"loss": loss.total, "count": loss.count})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss per token."""
        loss = sums["loss"] / sums["count"]
        return {"loss": loss, "perplexity": math.exp(loss)}
