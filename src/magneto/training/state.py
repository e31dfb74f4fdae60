"""A run while it is trained: what the loop moves on, and hooks may read.

Everything that happens in a run (steps, hooks, its beginning and its end) takes this state; so
these parts need not know each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from magneto.data.stream import BatchStream
from magneto.data.workers import BatchesAhead
from magneto.progress import ProgressBars
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World
from magneto.training.divergence import DivergenceDetector
from magneto.training.ema import WeightAverage
from magneto.training.interrupt import Interrupt
from magneto.training.metrics_logger import MetricsLogger
from magneto.training.task import Task
from magneto.training.throughput import Throughput
from magneto.training.writer import Writer


@dataclass(frozen=True)
class Stop:
    """Why a run ended: status is "finished", "diverged" or "interrupted"."""

    status: str
    reason: str = ""
    at: int | None = None


@dataclass(kw_only=True)
class TrainingState:
    """One run and all that belongs to it. Hooks may read everything, and set `stop`.

    Attributes:
        task: What is trained.
        config: How, in steps.
        run: The run's directory.
        seed: Of weights, data order and dropout.
        world: The ranks.
        report: Where progress is shown.
        model: As it is distributed.
        parameters: The model's that are trained.
        optimizer: Over them.
        average: Of the weights, if one is kept.
        stream: Of batches.
        batches: Gives the steps' batches.
        throughput: Counts units and seconds.
        writer: Writes checkpoints and weights.
        detector: Of divergence.
        interrupt: Tells of Ctrl-C.
        recipe: What the run is made of, as plain values; kept in its checkpoints.
        step: Steps taken.
        pending: (step, names, values) of the steps not yet logged.
        best: Steps and values of the best evaluations, the best first.
        metrics: The last evaluation.
        losses: Of the steps last logged.
        stop: Set where the run is to end.
        whole: Checkpoints known to be undamaged (main process only).
        metrics_logger: The records (main process only).
    """

    task: Task
    config: TrainingConfig
    run: Path
    seed: int
    world: World
    report: ProgressBars
    model: nn.Module
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    average: WeightAverage | None
    stream: BatchStream
    batches: BatchesAhead
    throughput: Throughput
    writer: Writer
    detector: DivergenceDetector
    interrupt: Interrupt
    # Across a run, what a checkpoint holds besides weights and optimizer:
    step: int = 0
    pending: list[tuple[int, list[str], torch.Tensor]] = field(default_factory=list)
    best: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    # Of this process only:
    recipe: Mapping[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    stop: Stop | None = None
    whole: list[Path] = field(default_factory=list)
    metrics_logger: MetricsLogger | None = None

    def read_pending(self) -> list[dict[str, Any]]:
        """Return the steps not yet logged as plain numbers; this waits for the device, once."""
        if not self.pending:
            return []
        table = torch.stack([values for _, _, values in self.pending]).tolist()
        return [
            {"step": step, **dict(zip(names, row, strict=True))}
            for (step, names, _), row in zip(self.pending, table, strict=True)
        ]

    def add_row(self, row: dict[str, Any]) -> None:
        """Write a row of metrics (the main process only)."""
        if self.metrics_logger is not None:
            self.metrics_logger.add(row)

    def close(self) -> None:
        """Stop the batch thread and close the records."""
        self.batches.close()
        self.report.finish()
        if self.metrics_logger is not None:
            self.metrics_logger.close()
