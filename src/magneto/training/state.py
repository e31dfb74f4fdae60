"""A run while it is trained, and what happens in it every so many steps (log, evaluate, save).

Everything that happens in a run (steps, hooks, its beginning and its end) takes its state; so these
parts need not know each other. Hooks may read everything, and set `stop`.
"""

# The torch._foreach functions have no public names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from magneto.config import ConfigError
from magneto.data.stream import BatchStream
from magneto.data.workers import BatchesAhead
from magneto.files import plain
from magneto.progress import ProgressBars
from magneto.training.checkpoint import (
    AVERAGE,
    OPTIMIZER,
    Writer,
    forget_old,
    model_pieces,
    optimizer_pieces,
)
from magneto.training.config import TrainingConfig, learning_rate
from magneto.training.distributed import Piece, World, any_rank, local_shard
from magneto.training.evaluation import evaluate as evaluate_task
from magneto.training.logging import MetricsLogger
from magneto.training.optimizer import WeightAverage
from magneto.training.resources import Throughput
from magneto.training.task import NON_FINITE, Task
from magneto.training.watch import DivergenceDetector, Interrupt
from magneto.weights import MODEL, list_steps, step_directory, step_of


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


# Lines on the training loss that stay on the screen, in a whole run.
LINES = 20


@dataclass(frozen=True)
class Hook:
    """A function of the run's state, called after every so many steps and after the last one.

    Attributes:
        every: Steps between calls; 0 for the last step only.
        function: May set `state.stop` to end the run.
    """

    every: int
    function: Callable[[TrainingState], None]

    def due(self, step: int, last: int) -> bool:
        """Return whether to call it after `step` steps of `last`."""
        return step == last or (self.every > 0 and step % self.every == 0)


def log(state: TrainingState) -> None:
    """Read the steps since the last log from the device, look for divergence, write a row."""
    steps, state.pending = state.read_pending(), []
    if not steps:
        return
    for step in steps:
        reason = state.detector.look(step["loss"] / max(step["count"], 1))
        if step["count"] == 0 and step.get(NON_FINITE, 0) > 0:
            reason = "no loss of the batch is finite"
        if reason:
            note_divergence(state, reason, step["step"])
    state.losses = [step["loss"] / max(step["count"], 1) for step in steps]
    names = [key for key in steps[0] if key not in ("step", "count", "gradient_norm")]
    count = max(sum(step["count"] for step in steps), 1)
    row: dict[str, Any] = {"step": state.step}
    row |= {name: sum(step[name] for step in steps) / count for name in names}
    row["gradient_norm"] = steps[-1]["gradient_norm"]
    row["learning_rate"] = learning_rate(state.config, state.step - 1)
    rate, utilisation = state.throughput.read(state.world.world_size)
    row[f"{state.task.unit}_per_second"] = rate
    row["flops_utilisation"] = utilisation
    row["data_wait_seconds"] = state.batches.read_waited()
    state.add_row(row)
    note = f"loss {row['loss']:.4g}, {rate:,.0f} {state.task.unit}/s"
    total = state.config.steps
    if state.step * LINES // total > (state.step - len(steps)) * LINES // total:
        rates = f"learning rate {row['learning_rate']:.3g}"
        state.report.say(f"step {state.step}/{total}: {note}, {rates}")
    state.report.update("training", state.step, total, note)


def note_divergence(state: TrainingState, reason: str, step: int) -> None:
    """End the run as diverged at a step, counted from 1; the first that is noted counts."""
    if state.stop is None or state.stop.status == "interrupted":
        state.stop = Stop("diverged", reason, step)


def check_weights(state: TrainingState) -> bool:
    """Return whether every weight is finite; if not, note the divergence. Every rank calls this.

    The loss of a step is of the weights before it: what its update broke, no loss has seen.
    """
    weights = [local_shard(parameter.detach()) for parameter in state.parameters]
    largest = torch._foreach_norm([w for w in weights if w.numel()], math.inf)
    broken = bool(largest) and not bool(torch.stack(list(largest)).isfinite().all())
    if any_rank(broken, state.world):
        note_divergence(state, "the weights are not finite", state.step)
        return False
    return True


def evaluate(state: TrainingState) -> None:
    """Evaluate, with the averaged weights if there are any, and keep the best.

    Weights whose validation loss is not finite are never the best: another metric of theirs may be
    finite, and a number by chance.
    """
    started = time.perf_counter()
    metrics = run_evaluation(state)
    state.metrics = metrics
    row = {"step": state.step} | {f"validation_{key}": value for key, value in metrics.items()}
    state.add_row(row)
    values = ", ".join(f"{key} {value:.4g}" for key, value in metrics.items())
    state.report.say(f"step {state.step}: validation {values}")
    if math.isfinite(metrics.get("loss", 0.0)):
        keep_best(state, metrics)
    else:
        note_divergence(state, f"the validation loss is {metrics['loss']}", state.step)
    state.throughput.pause(time.perf_counter() - started)


def run_evaluation(state: TrainingState) -> dict[str, float]:
    """Return the task's metrics of the model as it would be used."""
    config = state.config
    with state.average.in_place() if state.average else nullcontext():
        return evaluate_task(
            state.task, state.model, state.world, config.precision, config.evaluate_limit,
            state.report,
        ).metrics  # fmt: skip


def keep_best(state: TrainingState, metrics: dict[str, float]) -> None:
    """Save the weights if they are among the best by the task's primary metric."""
    task, config = state.task, state.config
    if task.primary_metric not in metrics:
        whose = f"{type(task).__name__}.primary_metric is {task.primary_metric!r}"
        raise ConfigError([f"{whose}, which is none of its metrics: {', '.join(metrics)}"])
    value = metrics[task.primary_metric]
    if not math.isfinite(value):
        return
    held = config.average_checkpoints if config.average_by == "best" else 0
    ranking = [*state.best, {"step": state.step, "value": value}]
    ranking.sort(key=lambda entry: entry["value"], reverse=task.higher_is_better)
    state.best = ranking[: max(held, 1)]
    kept = {entry["step"] for entry in state.best}
    if state.step not in kept:
        return
    kinds = {MODEL: used_weights(state)}
    values = {"step": state.step, "metrics": plain(metrics)}
    if state.best[0]["step"] == state.step:
        state.writer.write(state.run / "best", kinds, values)
    if held:
        folder = state.run / "candidates"

        def forget() -> None:
            for directory in list_steps(folder):
                if step_of(directory) not in kept:
                    shutil.rmtree(directory)

        state.writer.write(step_directory(folder, state.step), kinds, values, forget)


def used_weights(state: TrainingState) -> dict[str, Piece]:
    """Return this rank's pieces of what evaluation uses: the average if one is kept."""
    return model_pieces(state.model, state.average)


def save(state: TrainingState) -> None:
    """Write a checkpoint, from which the run goes on bit for bit; none of a run gone wrong."""
    started = time.perf_counter()
    pending = state.read_pending()
    if not all(math.isfinite(step["loss"]) for step in pending):
        log(state)  # finds the divergence; the checkpoints before it stay
        return
    if not check_weights(state):
        return
    values = {
        "step": state.step,
        "pending": pending,
        "detector": state.detector.state_dict(),
        "best": state.best,
        "metrics": state.metrics,
        "recipe": state.recipe,
        "records": state.metrics_logger.written if state.metrics_logger else None,
    }
    kinds = {
        MODEL: model_pieces(state.model),
        OPTIMIZER: optimizer_pieces(state.model, state.optimizer),
    }
    if state.average:
        kinds[AVERAGE] = used_weights(state)
    directory = step_directory(state.run / "checkpoints", state.step)

    def keep() -> None:
        state.whole[:] = [*(path for path in state.whole if path != directory), directory]
        forget_old(state.run, state.whole, state.config.keep_checkpoints)

    state.writer.write(directory, kinds, values, keep)
    state.throughput.pause(time.perf_counter() - started)
