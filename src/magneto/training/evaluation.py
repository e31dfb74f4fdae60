"""Evaluation, the same in training and afterwards: score the validation batches, add up, summarise.

The batches are cut among the ranks, whose sums and predictions are brought together at the end, so
that neither the number of ranks nor who evaluates changes a metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from magneto.data.stream import map_tensors, to_device
from magneto.progress import SILENT, Progress
from magneto.training.distributed import World, all_reduce_sum, gather_lists, reshard, unwrap
from magneto.training.task import Task


class Evaluation(NamedTuple):
    """What an evaluation gives.

    Attributes:
        metrics: By name.
        predictions: What `Task.score` gave of each batch that has any, in the batches' order.
    """

    metrics: dict[str, float]
    predictions: list[Any]


def evaluate(
    task: Task,
    model: nn.Module,
    world: World,
    precision: str,
    limit: int | None = None,
    progress: Progress = SILENT,
) -> Evaluation:
    """Return a task's metrics and predictions of a model on validation data; every rank calls this.

    Args:
        task: Prepared.
        model: As the loop has it, distributed or not; its modules are left in the modes they had.
        world: The ranks; batch i is scored by rank i % world size.
        precision: "bf16" for autocast, as in training; "fp32".
        limit: Batches to score at most: the first ones.
        progress: Shows it.

    Returns:
        The same on every rank.

    Raises:
        ValueError: If there is not one validation batch.
    """
    batches = task.validation_batches()
    count = len(batches) if limit is None else min(limit, len(batches))
    if count < 1:
        raise ValueError("there is nothing to evaluate on: the validation data makes no batch")
    autocast = torch.autocast(world.device.type, torch.bfloat16, enabled=precision == "bf16")
    sums: dict[str, Tensor] = {}
    predictions: list[tuple[int, Any]] = []
    with evaluation_mode(model), torch.no_grad(), autocast:
        for start in range(0, count, world.world_size):
            # A rank without a batch of its own scores the last one again and throws it away: ranks
            # that hold shards of the model run it together.
            number = start + world.rank
            batch = to_device(batches[min(number, count - 1)], world.device)
            found = task.score(unwrap(model), batch)
            add(sums, found.sums, counted=number < count)
            if number < count and found.predictions is not None:
                predictions.append((number, found.predictions))
            done = min(start + world.world_size, count)
            progress.update("evaluating batches", done, count)
        reshard(model)
    found = in_order(predictions, world)
    metrics = task.summarise(total_sums(sums, world), found)
    return Evaluation({name: float(value) for name, value in metrics.items()}, found)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode for a while; modules that were in it before stay in it."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def add(sums: dict[str, Tensor], found: Mapping[str, Tensor], counted: bool) -> None:
    """Add a batch's sums in float64; of one that does not count, only the names and shapes."""
    for name, value in found.items():
        wide = value.detach().double()
        zero = torch.zeros_like(wide)
        sums[name] = sums.get(name, zero) + (wide if counted else zero)


def total_sums(sums: Mapping[str, Tensor], world: World) -> dict[str, Any]:
    """Add sums up over the ranks and read them from the device, all at once."""
    if not sums:
        return {}
    flat = all_reduce_sum(torch.cat([value.flatten() for value in sums.values()]), world).cpu()
    sizes = [math.prod(value.shape) for value in sums.values()]
    parts = zip(sums.items(), flat.split(sizes), strict=True)
    return {name: part.reshape(value.shape).tolist() for (name, value), part in parts}


def in_order(predictions: Sequence[tuple[int, Any]], world: World) -> list[Any]:
    """Bring the ranks' numbered predictions together on the CPU, in the order of their batches."""
    mine = [(number, map_tensors(value, Tensor.cpu)) for number, value in predictions]
    return [value for _, value in sorted(gather_lists(mine, world), key=lambda pair: pair[0])]
