"""The first step from initialisation, tried at many rates and taken back each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from magneto.data.batch import to_device
from magneto.lab.probe.probe import Probe, last_stack
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World
from magneto.training.optimizer import build_optimizer, set_learning_rate
from magneto.training.schedule import learning_rate
from magneto.training.task import Task

# Rates at which the first step is tried: half decades.
RATES = tuple(10 ** (power / 2) for power in range(-12, 1))
# Each micro-batch is cut in so many for the tries: they need one look each, not a gradient.
CUTS = 4


@dataclass(frozen=True)
class FirstStep:
    """The first step from initialisation, tried at one rate and taken back.

    Attributes:
        learning_rate: The rate, whatever the schedule says.
        loss: After the step, on a piece of the batch the step was taken on.
        moved: Norm of the change of the last stack's output, over the output's norm.
        update: Norm of the change of a layer's weights, over their norm: the mean over layers.
    """

    learning_rate: float
    loss: float
    moved: float
    update: float = 0.0


def peak_rate(config: TrainingConfig) -> float:
    """Return the largest learning rate of a schedule."""
    return learning_rate(config, config.warmup_steps)


def first_tries(
    task: Task,
    model: nn.Module,
    config: TrainingConfig,
    world: World,
    seed: int,
    rates: Sequence[float],
) -> list[FirstStep]:
    """Try the first step at each rate and at the peak, on a piece of the first batch."""
    chosen = sorted({*rates, peak_rate(config)})
    piece = piece_to_look_at(task, config, seed)
    return try_first_step(task, model, piece, config, world, chosen)


def piece_to_look_at(task: Task, config: TrainingConfig, seed: int) -> Any:
    """Return a part of the first batch's first micro-batch; all of it where it can't be cut."""
    whole = config.gradient_accumulation_steps
    try:
        parts = min(CUTS * whole, config.batch_size)
        return task.train_stream(config.batch_size, seed).batch(0, parts)[0]
    except ValueError:  # for example two images, beside as many texts and pairs, in four parts
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
    """Take the optimizer's first step at each rate, look, and take it back.

    Args:
        task: Its loss is looked at.
        model: With its gradients.
        piece: What to look at: a piece of the batch that the gradients are of.
        config: Whose optimizer, and in which precision.
        world: This process.
        rates: Learning rates.
    """
    kept = [parameter.clone() for parameter in model.parameters()]
    piece = to_device(piece, world.device)

    def look() -> tuple[float, Tensor]:
        torch.manual_seed(0)  # the same dropout
        autocast = torch.autocast(
            world.device.type, torch.bfloat16, enabled=config.precision == "bf16"
        )
        with last_output(model) as outputs, autocast:
            loss = task.loss(model, piece)
        return (loss.total / loss.count.clamp(min=1)).item(), outputs[-1]

    loss, before = look()
    tried = [FirstStep(0.0, loss, 0.0)]
    probe = Probe(model)
    for rate in rates:
        optimizer = build_optimizer(model, config, task.rate_multipliers(model))
        set_learning_rate(optimizer, rate)
        probe.mark()
        optimizer.step()
        update = fmean(layer.update_ratio or 0.0 for layer in probe.read())
        loss, after = look()
        moved = ((after - before).norm() / before.norm()).item()
        tried.append(FirstStep(rate, loss, moved, update))
        for parameter, value in zip(model.parameters(), kept, strict=True):
            parameter.copy_(value)
    return tried


@contextmanager
def last_output(model: nn.Module) -> Iterator[list[Tensor]]:
    """Keep what the model's last stack puts out last.

    A model that reads features of layers never calls the stack itself: it is then what the highest
    of these layers gives, through the norm on top where the model uses that.
    """
    outputs: list[Tensor] = []
    stack = last_stack(model)

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[:] = [stack.tokens(output).float()]

    parts = [*stack.layers, stack.final_norm, stack]
    handles = [part.register_forward_hook(keep) for part in parts]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
