"""A new task: what the training loop needs to know of it is one class.

The task is to sort numbers: an encoder sees a row of digits and says which digit stands at each
place of the sorted row. From the loop it gets everything: checkpoints, resuming, ranks, records.

    python examples/new_task.py

With this file on the Python path, a recipe that says `task: new_task:Sorting` works too, with every
command: `PYTHONPATH=examples magneto train sorting.yaml`.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto import Encoder, TransformerConfig
from magneto.data.stream import BatchStream, example_stream, shuffled
from magneto.training.config import TrainingConfig
from magneto.training.loop import train
from magneto.training.task import Loss, Scores, Task


@dataclass(frozen=True, kw_only=True)
class SortingData:
    """Rows of digits."""

    rows: int = 4096
    length: int = 8


class Sorter(nn.Module):
    """Embedding, encoder, one of ten digits per place."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, config.width)
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.width, 10)

    def forward(self, digits: Tensor) -> Tensor:
        """(batch, length) digits to (batch, length, 10) logits."""
        return self.head(self.encoder(self.embedding(digits)))


class Sorting(Task):
    """Say the sorted row."""

    primary_metric = "accuracy"
    higher_is_better = True
    unit = "rows"
    ModelConfig = TransformerConfig
    DataConfig = SortingData

    def rows(self, split: int) -> Tensor:
        """Return the digits of a split (0 for training, 1 for validation), (rows, length)."""
        random = np.random.default_rng([self.seed, split])
        return torch.from_numpy(
            random.integers(10, size=(self.data_config.rows, self.data_config.length))
        )

    def build_model(self) -> Sorter:
        """Build the model."""
        return Sorter(self.model_config)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return rows in random order."""
        digits = self.rows(0)
        return example_stream(
            shuffled(len(digits), batch_size, seed), lambda numbers, draws: digits[numbers]
        )

    def loss(self, model: nn.Module, batch: Tensor) -> Loss:
        """Sum over the places; the loop divides by their number, over all ranks."""
        logits, answers = model(batch), batch.sort(dim=1).values
        right = (logits.detach().argmax(-1) == answers).sum()
        total = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum")
        return Loss(total, torch.ones_like(answers).sum(), {"accuracy": right})

    def validation_batches(self) -> Sequence[Tensor]:
        """Return other rows in batches of 256."""
        return self.rows(1).split(256)

    def score(self, model: nn.Module, batch: Tensor) -> Scores:
        """Sum what the metrics are made of; the evaluation adds up over batches and ranks."""
        loss = self.loss(model, batch)
        right = loss.logs["accuracy"]
        return Scores({"loss": loss.total, "right": right, "count": loss.count})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss, and the share of places that are right."""
        return {"loss": sums["loss"] / sums["count"], "accuracy": sums["right"] / sums["count"]}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the share of places that the commonest digit of each place gets right.

        All rows are alike, so that the first batches need no baseline of their own.
        """
        train, held = (self.rows(split).sort(dim=1).values for split in (0, 1))
        return {"accuracy": (held == train.mode(dim=0).values).float().mean().item()}


def main(run: Path, steps: int = 200) -> Any:
    """Train in the directory `run`; return how it ended."""
    model = TransformerConfig(width=64, layers=4, heads=4, ffn_width=128, positions="learned")
    training = TrainingConfig(steps=steps, batch_size=64, learning_rate=2e-3, warmup_steps=10)
    return train(Sorting(model, SortingData(), seed=1), training, run, seed=1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(main(Path(folder) / "run").metrics)
