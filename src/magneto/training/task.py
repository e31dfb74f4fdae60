"""All that the training loop knows of a task: batches come out, a sum and a count go in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from magneto.progress import SILENT, Progress

DIGEST_FILE = "data.digest"
"""In a run: what names the content of the data it is trained on."""


@dataclass(frozen=True)
class Loss:
    """A loss as a sum and a count, so that pieces of a batch add up to the whole.

    Attributes:
        total: Sum over everything predicted, a scalar with a gradient.
        count: How many things were predicted, a scalar tensor on the same device.
        logs: Further sums to show; each is divided by `count`.
    """

    total: Tensor
    count: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)


class BatchStream(Protocol):
    """Global batches in a reproducible order, cut for ranks and micro-batches."""

    def next(self, parts: int, wanted: Sequence[int]) -> list[Any]:
        """Cut the next batch in `parts` near-equal pieces; return those numbered `wanted`."""
        ...

    def name_next(self, parts: int, wanted: Sequence[int]) -> str:
        """Say of which examples `next` would make these pieces, for messages; make nothing."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands, as plain JSON values that will not change."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another stream stood."""
        ...


class Task(ABC):
    """One objective on one kind of data.

    Attributes:
        primary_metric: Key of `evaluate`'s result by which checkpoints are chosen.
        higher_is_better: Its direction.
        unit: What throughput counts, in the plural.
        ModelConfig: Dataclass of a recipe's `model` section, of a task that is not in
            `magneto.tasks.TASKS` and named by its import path.
        DataConfig: Dataclass of the `data` section, likewise.
        model_config: What to train.
        data_config: On what.
        seed: Of weights, data order, dropout and splits.
    """

    primary_metric: str = "loss"
    higher_is_better: bool = False
    unit: ClassVar[str] = "examples"
    ModelConfig: ClassVar[type]
    DataConfig: ClassVar[type]

    def __init__(self, model_config: Any, data_config: Any, seed: int) -> None:
        self.model_config = model_config
        self.data_config = data_config
        self.seed = seed

    def check_strategy(self, kind: str) -> None:
        """Raise ValueError if it can't be trained on ranks of a kind ("ddp", "fsdp", ...)."""
        return None

    def prepare(self, progress: Progress = SILENT) -> None:
        """Do the slow work that is done once (tokenise, cache); called on the first rank first."""
        return None

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build the model, initialised from torch's current random state."""

    @abstractmethod
    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return the training batches, `batch_size` examples at a time."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Run the model on one batch, which is on its device, and return the loss."""

    @abstractmethod
    def size(self, batch: Any) -> int:
        """Return how many units a batch holds, without waiting for the device."""

    @abstractmethod
    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        limit: int | None = None,
        progress: Progress = SILENT,
    ) -> dict[str, float]:
        """Return metrics on the validation split, of at most `limit` batches."""

    def examples(self) -> int | None:
        """Return how many examples an epoch has, or None where there are no epochs."""
        return None

    def artifacts(self, directory: Path) -> None:
        """Write what a run's model needs later besides weights, and a digest of the data.

        A folder `tokenizer` comes back as `data.tokenizer` when the run is opened. Where something
        else is in a run already, it is not resumed.
        """
        return None
