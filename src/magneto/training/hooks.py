"""Hooks of the training loop: what happens every so many steps (log, evaluate, save)."""

# The torch._foreach functions have no public names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from magneto.files import plain
from magneto.training.checkpoint import (
    AVERAGE,
    OPTIMIZER,
    forget_old,
    model_pieces,
    optimizer_pieces,
)
from magneto.training.distributed import any_rank
from magneto.training.evaluation import evaluate as evaluate_task
from magneto.training.schedule import learning_rate
from magneto.training.sharding import Piece, local_shard
from magneto.training.state import Stop, TrainingState
from magneto.training.task import NON_FINITE
from magneto.weights import MODEL, list_steps, step_directory, step_of

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
