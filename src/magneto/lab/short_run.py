"""Measurements of the first steps of training, and of the first step at many learning rates.

The steps are those of `train` in one process: the same weights, batches, dropout, optimizer,
schedule and precision. No files are written. After each trial of the first step, the initial
weights are restored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from magneto.data.stream import to_device
from magneto.lab.probe import LIMITS, LayerReading, Probe, Trouble, first_trouble, last_stack
from magneto.progress import SILENT, Progress
from magneto.training.config import TrainingConfig, learning_rate, resolve_steps
from magneto.training.distributed import World, all_reduce_sum, pick_device, single_process
from magneto.training.loop import accumulate, step_seed
from magneto.training.model import initial_model as training_model
from magneto.training.model import initialise_from_data
from magneto.training.optimizer import (
    build_optimizer,
    scale_gradients,
    set_learning_rate,
    take_step,
)
from magneto.training.task import Task, place_companion

# Learning rates of the first step: half decades.
RATES = tuple(10 ** (power / 2) for power in range(-12, 1))
# Parts of a micro-batch. Only one part is evaluated after each trial.
CUTS = 4
# Steps of a probe at the peak rate; thresholds were chosen for this number.
PEAK_STEPS = 12


@dataclass(frozen=True)
class FirstStep:
    """Result of the first training step, tried at one learning rate.

    Attributes:
        learning_rate: Rate of this step, independent of the schedule.
        loss: Loss after the step, on a part of the step's batch.
        moved: Relative change of the last stack's output (norm of the change / norm of the output).
        update: Relative change of a layer's weights (norm of the change / norm of the weights),
            averaged over layers.
    """

    learning_rate: float
    loss: float
    moved: float
    update: float = 0.0


def peak_rate(config: TrainingConfig) -> float:
    return learning_rate(config, config.warmup_steps)


def at_peak_rate(config: TrainingConfig) -> TrainingConfig:
    """Return a configuration with the peak rate at every step, without warm-up."""
    return replace(config, schedule="constant", warmup_steps=0, warmup_ratio=None)


def first_piece(task: Task, config: TrainingConfig, seed: int) -> Any:
    """Return a part of the first micro-batch, or all of it if it can't be divided."""
    whole = config.gradient_accumulation_steps
    try:
        parts = min(CUTS * whole, config.batch_size)
        return task.train_stream(config.batch_size, seed).batch(0, parts)[0]
    except ValueError:  # for example for two images in four parts
        return task.train_stream(config.batch_size, seed).batch(0, whole)[0]


@torch.no_grad()
def try_first_step(
    task: Task,
    model: nn.Module,
    piece: Any,
    config: TrainingConfig,
    world: World,
    rates: Sequence[float],
) -> list[FirstStep]:
    """For each rate, take the optimizer's first step, measure its effect on `piece`, and undo it.

    `model` must have the gradients of a whole batch. `piece` is a part of the batch.
    """
    kept = [parameter.clone() for parameter in model.parameters()]
    piece = to_device(piece, world.device)

    def evaluate() -> tuple[float, Tensor]:
        torch.manual_seed(0)  # the same dropout
        with last_output(model) as outputs, world.autocast(config.precision):
            loss = task.loss(model, piece)
        return (loss.total / loss.count.clamp(min=1)).item(), outputs[-1]

    loss, before = evaluate()
    tried = [FirstStep(0.0, loss, 0.0)]
    probe = Probe(model)
    for rate in rates:
        optimizer = build_optimizer(model, config, task.rate_multipliers(model))
        set_learning_rate(optimizer, rate)
        probe.mark()
        optimizer.step()
        update = fmean(layer.update_ratio or 0.0 for layer in probe.read())
        loss, after = evaluate()
        moved = ((after - before).norm() / before.norm()).item()
        tried.append(FirstStep(rate, loss, moved, update))
        for parameter, value in zip(model.parameters(), kept, strict=True):
            parameter.copy_(value)
    return tried


@contextmanager
def last_output(model: nn.Module) -> Iterator[list[Tensor]]:
    """Record the most recent output of the model's last stack.

    If a model calls the layers one by one instead of the stack, the output of the final norm is
    recorded. If the model does not call the final norm, the last layer's output is recorded.
    """
    outputs: list[Tensor] = []
    stack = last_stack(model)

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[:] = [stack.tokens(output).float()]

    with ExitStack() as hooks:
        for part in (*stack.layers, stack.final_norm, stack):
            hooks.enter_context(part.register_forward_hook(keep))
        yield outputs


@dataclass(frozen=True)
class StepReading:
    """Measurements of one training step.

    Attributes:
        step: Number of the step, from 1.
        loss: Mean loss per prediction before the step.
        learning_rate: Learning rate of the step.
        gradient_norm: Norm of the whole gradient before clipping.
        layers: Measurements of each layer.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    layers: list[LayerReading]


@dataclass(frozen=True)
class ShortRun:
    """Measurements of one recipe.

    Attributes:
        steps: The first steps of training. The list ends after a step whose loss is not finite.
        first_steps: Trials of the first step at several learning rates, the smallest rate first.
            The first trial has rate 0 and so changes no weights. The list is [] without trials.
        peak: Largest rate of the schedule. `first_steps` includes a trial at the rate `peak`.
        peak_steps: First steps at the peak rate (`steps_at_peak`); [] if not measured.
    """

    steps: list[StepReading]
    first_steps: list[FirstStep]
    peak: float = 0.0
    peak_steps: list[StepReading] = field(default_factory=list)

    @property
    def first(self) -> StepReading:
        return self.steps[0]

    def troubles(self) -> dict[str, tuple[int, Trouble] | None]:
        """For each number format, return the first step with a `Trouble`, and the trouble."""
        found = {}
        for limit in LIMITS:
            each = ((step.step, first_trouble(step.layers, limit)) for step in self.steps)
            found[limit] = next(((number, trouble) for number, trouble in each if trouble), None)
        return found

    def at_rate(self, rate: float) -> FirstStep:
        """Return the trial of the first step at `rate`.

        `rate` must be one of the tried rates.
        """
        return next(t for t in self.first_steps if math.isclose(t.learning_rate, rate))


def initial_model(task: Task, config: TrainingConfig, seed: int) -> nn.Module:
    """Build the model with the initial weights of training."""
    return training_model(task, seed, single_process(pick_device(config.device)))


def short_run(
    task: Task,
    model: nn.Module,
    config: TrainingConfig,
    *,
    seed: int,
    steps: int,
    rates: Sequence[float] = RATES,
    progress: Progress = SILENT,
) -> ShortRun:
    """Take and measure the first `steps` steps (at least 1) of training.

    `task.prepare` must have been called. `model` must be a result of `initial_model`, and is
    trained in place. If `rates` is not empty, the first step is also tried at these rates and at
    the peak rate.

    Raises:
        ValueError: If the model has no stack, or no learning rate is set.
    """
    world = single_process(pick_device(config.device))
    stream = task.train_stream(config.batch_size, seed)
    config = resolve_steps(config, stream.examples)
    parameters = [p for p in model.parameters() if p.requires_grad]
    place_companion(task, world.device)
    optimizer = build_optimizer(model, config, task.rate_multipliers(model))
    probe = Probe(model)
    optimizer.register_step_pre_hook(lambda given, *rest: probe.mark(given))
    initialise_from_data(task, model, stream, config, world)
    seen, tried = [], []
    for step in range(steps):
        # As `train_step` in training/loop.py, with measurements: change both together.
        micro_batches = stream.batch(
            step, config.gradient_accumulation_steps, range(config.gradient_accumulation_steps)
        )
        torch.manual_seed(step_seed(seed, step, 0))
        with probe.watch():
            sums, _, _ = accumulate(task, model, micro_batches, config, world)
        if step == 0 and rates:
            gradients = [None if p.grad is None else p.grad.clone() for p in parameters]
            scale_gradients(parameters, sums[1], config.clip_norm, world)
            piece = first_piece(task, config, seed)
            chosen = sorted({*rates, peak_rate(config)})
            tried = try_first_step(task, model, piece, config, world, chosen)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        rate = learning_rate(config, step)
        set_learning_rate(optimizer, rate)
        norm = take_step(optimizer, parameters, sums[1], config.clip_norm, world)
        with torch.no_grad():
            task.end_step(model, partial(all_reduce_sum, world=world))
        total, count, *_ = sums.tolist()
        loss = total / max(count, 1)
        seen.append(StepReading(step + 1, loss, rate, norm.item(), probe.read()))
        progress.update("steps", step + 1, steps)
        if not math.isfinite(loss):
            break
    return ShortRun(seen, tried, peak_rate(config))


def steps_at_peak(
    task: Task, config: TrainingConfig, *, seed: int, steps: int, progress: Progress = SILENT
) -> list[StepReading]:
    """Measure the first training steps, at the schedule's peak rate and without a warm-up.

    The peak rate changes the model more strongly in the first steps than after a warm-up.
    """
    model, config = initial_model(task, config, seed), at_peak_rate(config)
    found = short_run(task, model, config, seed=seed, steps=steps, rates=(), progress=progress)
    return found.steps
