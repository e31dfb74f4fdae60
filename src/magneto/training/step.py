"""One optimizer step: the gradient of a sum over micro-batches and ranks, divided by one count."""

# The torch._foreach functions have no public names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from magneto.data.batch import named_tensors, to_device
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World, all_reduce_sum
from magneto.training.sharding import is_fsdp, local_shard
from magneto.training.task import Loss, Task


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of one step on one rank, so that no random state need be saved."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def accumulate(
    task: Task, model: nn.Module, pieces: list[Any], config: TrainingConfig, world: World
) -> tuple[Tensor, list[str], int]:
    """Add up gradients of the summed loss over this rank's micro-batches.

    Returns:
        Sums over all ranks (loss, count, and each of the task's logs), on the device; their names;
        and the units of this rank's pieces. Nothing waits for the device.
    """
    sums, names, units = [], [], 0
    for index, piece in enumerate(pieces):
        with exchange(model, index == len(pieces) - 1):
            with torch.autocast(
                world.device.type, torch.bfloat16, enabled=config.precision == "bf16"
            ):
                loss = task.loss(model, to_device(piece, world.device))
            loss.total.backward()
        names = ["loss", "count", *loss.logs]
        sums.append(loss_sums(loss))
        units += units_of(loss, piece)
    return all_reduce_sum(torch.stack(sums).sum(0), world), names, units


def units_of(loss: Loss, piece: Any) -> int:
    """Return how many units a micro-batch holds, by its loss or by the rows of its first tensor."""
    if loss.units is not None:
        return loss.units
    return len(next(iter(named_tensors(piece).values())))


def loss_sums(loss: Loss) -> Tensor:
    """Return a loss's sums as one vector: total, count, logs."""
    values = (loss.total, loss.count, *loss.logs.values())
    return torch.stack([value.detach().float() for value in values])


def exchange(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Let ranks exchange gradients in the last micro-batch only."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if is_fsdp(model):
        model.set_requires_gradient_sync(last)
    return nullcontext()


@torch.no_grad()
def scale_gradients(
    parameters: list[nn.Parameter], count: Tensor, clip_norm: float | None, world: World
) -> Tensor:
    """Divide the gradients by the global count, and clip their norm, in one pass.

    Ranks have averaged their gradients of the sum, so they are multiplied by ranks / count.

    Returns:
        The norm before clipping, on the device.
    """
    gradients = [local_shard(p.grad) for p in parameters if p.grad is not None]
    square = torch.stack(torch._foreach_norm(gradients)).square().sum()
    if world.is_sharded:  # each copy's shards give the square once
        square = all_reduce_sum(square, world) / world.replicas
    scale = world.world_size / count.clamp(min=1)
    norm = square.sqrt() * scale
    if clip_norm is not None:
        scale = scale * (clip_norm / (norm + 1e-6)).clamp(max=1)
    torch._foreach_mul_(gradients, scale)
    return norm
