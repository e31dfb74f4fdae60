"""The state of a run, and the hooks that read it after a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magneto.data.stream import BatchStream
from magneto.data.workers import BatchPrefetcher
from magneto.progress import ProgressBars
from magneto.training.checkpoint import RunWeights
from magneto.training.config import TrainingConfig
from magneto.training.distributed import Interrupt, World
from magneto.training.evaluation import DivergenceDetector
from magneto.training.logging import MetricsLogger, Throughput
from magneto.training.optimizer import WeightAverage
from magneto.training.task import Task


@dataclass(frozen=True)
class Stop:
    """Status of a run that ended: "finished", "diverged" or "interrupted", with reason and step."""

    status: str
    reason: str = ""
    step: int | None = None


@dataclass(kw_only=True)
class TrainingState:
    """Objects and counters of one run. Hooks may read all attributes, and set `stop`."""

    task: Task
    config: TrainingConfig  # with epochs resolved to steps
    run: Path
    seed: int
    world: World
    report: ProgressBars
    model: nn.Module  # wrapped or sharded for the ranks
    parameters: list[nn.Parameter]  # trained ones only
    optimizer: torch.optim.Optimizer
    average: WeightAverage | None
    stream: BatchStream
    batches: BatchPrefetcher
    throughput: Throughput
    weights: RunWeights
    detector: DivergenceDetector
    interrupt: Interrupt
    # Saved in checkpoints, besides weights and optimizer:
    step: int = 0  # completed steps
    pending: list[tuple[int, list[str], Tensor]] = field(default_factory=list)  # not yet logged
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    recipe: Mapping[str, Any] = field(default_factory=dict)
    # Of this process only:
    first_step: int = 0  # steps completed before this process started
    losses: list[float] = field(default_factory=list)  # per step, since the last log
    stop: Stop | None = None
    metrics_logger: MetricsLogger | None = None  # on the main process only

    def read_pending(self) -> list[dict[str, Any]]:
        """Return the values of steps not yet logged as rows, waiting once for the device."""
        if not self.pending:
            return []
        table = torch.stack([values for _, _, values in self.pending]).tolist()
        return [
            {"step": step, **dict(zip(names, row, strict=True))}
            for (step, names, _), row in zip(self.pending, table, strict=True)
        ]

    def add_row(self, row: dict[str, Any]) -> None:
        """Write a row of metrics on the main process."""
        if self.metrics_logger is not None:
            self.metrics_logger.add(row)

    def mark_diverged(self, reason: str, step: int) -> None:
        """Stop the run as diverged at a step, counted from 1; later reasons are ignored."""
        if self.stop is None or self.stop.status == "interrupted":
            self.stop = Stop("diverged", reason, step)

    def close(self) -> None:
        """Stop the data workers and close the log files."""
        self.batches.close()
        self.report.finish()
        if self.metrics_logger is not None:
            self.metrics_logger.close()


@dataclass(frozen=True)
class Hook:
    """Function to call after every `every` steps and after the last step.

    Attributes:
        every: Steps between calls; 0 for the last step only.
        function: Function of the run's state. The function may set `state.stop` to end the run.
    """

    every: int
    function: Callable[[TrainingState], None]

    def due(self, step: int, last: int) -> bool:
        """Return whether to call the function after `step` of `last` steps."""
        return step == last or (self.every > 0 and step % self.every == 0)
