"""Hooks of the training loop: what happens every so many steps (log, evaluate, save)."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from magneto.files import plain
from magneto.training.checkpoint import forget_old, model_tensors, save_checkpoint, save_weights
from magneto.training.distributed import reshard, unwrap
from magneto.training.schedule import learning_rate

if TYPE_CHECKING:
    from magneto.training.loop import Trainer


@dataclass(frozen=True)
class Hook:
    """A function of the trainer, called after every so many steps and after the last one.

    Attributes:
        every: Steps between calls; 0 for the last step only.
        function: May set `trainer.stop` to end the run.
    """

    every: int
    function: Callable[[Trainer], None]

    def due(self, step: int, last: int) -> bool:
        """Return whether to call it after `step` steps of `last`."""
        return step == last or (self.every > 0 and step % self.every == 0)


@dataclass(frozen=True)
class Stop:
    """Why a run ended: status is "finished", "diverged" or "interrupted"."""

    status: str
    reason: str = ""
    at: int | None = None


def log(trainer: Trainer) -> None:
    """Read the steps since the last log from the device, look for divergence, write a row."""
    steps, trainer.pending = trainer.read_pending(), []
    if not steps:
        return
    for step in steps:
        reason = trainer.detector.look(step["loss"] / max(step["count"], 1))
        if reason and (trainer.stop is None or trainer.stop.status == "interrupted"):
            trainer.stop = Stop("diverged", reason, step["step"])
    trainer.losses = [step["loss"] / max(step["count"], 1) for step in steps]
    if trainer.stop is None:  # else it is the place to look at
        trainer.logged = {"step": trainer.step, "stream": trainer.stream_state}
    names = [key for key in steps[0] if key not in ("step", "count", "gradient_norm")]
    count = max(sum(step["count"] for step in steps), 1)
    row: dict[str, Any] = {"step": trainer.step}
    row |= {name: sum(step[name] for step in steps) / count for name in names}
    row["gradient_norm"] = steps[-1]["gradient_norm"]
    row["learning_rate"] = learning_rate(trainer.config, trainer.step - 1)
    rate, utilisation = trainer.throughput.read(trainer.world.world_size)
    row[f"{trainer.task.unit}_per_second"] = rate
    row["flops_utilisation"] = utilisation
    row["data_wait_seconds"] = trainer.batches.read_waited()
    trainer.add_row(row)
    note = f"loss {row['loss']:.4g}, {rate:,.0f} {trainer.task.unit}/s"
    trainer.report.update("training", trainer.step, trainer.config.steps, note)


def evaluate(trainer: Trainer) -> None:
    """Evaluate, with the averaged weights if there are any, and keep the best."""
    started = time.perf_counter()
    metrics = run_evaluation(trainer)
    trainer.metrics = metrics
    row = {"step": trainer.step} | {f"validation_{key}": value for key, value in metrics.items()}
    trainer.add_row(row)
    values = ", ".join(f"{key} {value:.4g}" for key, value in metrics.items())
    trainer.report.say(f"step {trainer.step}: validation {values}")
    keep_best(trainer, metrics)
    trainer.throughput.pause(time.perf_counter() - started)


def run_evaluation(trainer: Trainer) -> dict[str, float]:
    """Return the task's metrics of the model as it would be used."""
    model, config = trainer.model, trainer.config
    averaged = trainer.average.in_place() if trainer.average else nullcontext()
    model.eval()
    autocast = torch.autocast(
        trainer.world.device.type, torch.bfloat16, enabled=config.precision == "bf16"
    )
    with torch.no_grad(), averaged, autocast:
        used = model if trainer.world.strategy == "fsdp" else unwrap(model)
        metrics = trainer.task.evaluate(
            used, trainer.world.device, config.evaluate_limit, trainer.report
        )
        reshard(model)
    model.train()
    return metrics


def keep_best(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Save the weights if they are among the best by the task's primary metric."""
    task, config = trainer.task, trainer.config
    value = metrics[task.primary_metric]
    if not math.isfinite(value):
        return
    held = config.average_checkpoints if config.average_by == "best" else 0
    ranking = [*trainer.best, {"step": trainer.step, "value": value}]
    ranking.sort(key=lambda entry: entry["value"], reverse=task.higher_is_better)
    trainer.best = ranking[: max(held, 1)]
    kept = {entry["step"] for entry in trainer.best}
    if trainer.step not in kept:
        return
    tensors = used_weights(trainer)
    if trainer.world.is_main_process:
        state = {"step": trainer.step, "metrics": plain(metrics)}
        if trainer.best[0]["step"] == trainer.step:
            save_weights(trainer.run / "best", tensors, state)
        if held:
            save_weights(trainer.run / "candidates" / f"step-{trainer.step:08d}", tensors, state)
            for directory in (trainer.run / "candidates").glob("step-*"):
                if int(directory.name.split("-")[1]) not in kept:
                    shutil.rmtree(directory)


def used_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Gather the weights that evaluation uses: the averaged ones if there are any."""
    with trainer.average.in_place() if trainer.average else nullcontext():
        return model_tensors(trainer.model, trainer.world)


def save(trainer: Trainer) -> None:
    """Write a checkpoint, from which the run goes on bit for bit; none of a run gone wrong."""
    started = time.perf_counter()
    pending = trainer.read_pending()
    if not all(math.isfinite(step["loss"]) for step in pending):
        log(trainer)  # finds the divergence; the checkpoints before it stay
        return
    state = {
        "step": trainer.step,
        "stream": trainer.stream_state,
        "pending": pending,
        "logged": trainer.logged,
        "detector": trainer.detector.state_dict(),
        "best": trainer.best,
        "metrics": trainer.metrics,
    }
    extra = {"ema": used_weights(trainer)} if trainer.average else {}
    save_checkpoint(trainer.run, trainer.model, trainer.optimizer, extra, state, trainer.world)
    if trainer.world.is_main_process:
        forget_old(trainer.run, trainer.config.keep_checkpoints)
    trainer.throughput.pause(time.perf_counter() - started)
