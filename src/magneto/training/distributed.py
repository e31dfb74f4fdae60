"""Distributed training: process group, rank and world size; DDP and FSDP.

Started by torchrun, processes find each other through its environment variables: NCCL on GPUs, gloo
on CPUs. "ddp" keeps a copy of the model on each rank, "fsdp" (FSDP2) a shard of every parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from magneto.training.config import TrainingConfig


@dataclass(frozen=True)
class World:
    """This process among all.

    Attributes:
        rank: Number of this process, from 0.
        world_size: How many processes there are.
        device: Where its tensors live.
        strategy: "none", "ddp" or "fsdp".
    """

    rank: int
    world_size: int
    device: torch.device
    strategy: str

    @property
    def is_main_process(self) -> bool:
        """True on the rank that writes files and prints."""
        return self.rank == 0


@contextmanager
def join_world(config: TrainingConfig) -> Iterator[World]:
    """Join the other processes, if there are any, and leave them at the end.

    Raises:
        ValueError: If `distributed` asks for several processes and torchrun started none, or the
            other way.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    strategy = config.distributed
    if strategy == "auto":
        strategy = "ddp" if world_size > 1 else "none"
    if strategy == "none" and world_size > 1:
        raise ValueError(f"torchrun started {world_size} processes: say --distributed ddp or fsdp")
    if strategy != "none" and "RANK" not in os.environ:
        raise ValueError(
            f"--distributed {strategy} needs torchrun: "
            "torchrun --nproc-per-node 2 -m magneto train RECIPE ..."
        )
    device = pick_device(config.device)
    if strategy == "none":
        yield World(0, 1, device, strategy)
        return
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device, strategy)
    finally:
        dist.destroy_process_group()


def pick_device(name: str) -> torch.device:
    """Return the named device; "auto" is this rank's GPU, or the CPU.

    Raises:
        ValueError: If torch has no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"training.device: torch knows no device {name!r}") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("training.device is cuda, and there is no GPU that torch can use here")
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


def distribute_model(model: nn.Module, world: World) -> nn.Module:
    """Distribute a model over the ranks: as it is, copied, or every layer sharded."""
    if world.strategy == "ddp":
        return DistributedDataParallel(model)
    if world.strategy == "fsdp":
        for module in model.modules():
            if isinstance(module, nn.ModuleList):
                for layer in module:
                    fully_shard(layer)
        fully_shard(model)  # in place
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model without the wrapper that `distribute_model` may have put around it."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def reshard(model: nn.Module) -> None:
    """Drop the whole parameters that FSDP's root keeps after a forward pass without a backward.

    Otherwise it would take them for current after the weights have been exchanged.
    """
    if isinstance(model, FSDPModule):
        model.reshard()


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def all_reduce_sum(tensor: Tensor, world: World) -> Tensor:
    """Add a tensor up over all ranks, in place."""
    if world.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def any_rank(flag: bool, world: World) -> bool:
    """Return whether the flag is set on any rank; waits for the others."""
    if world.world_size == 1:
        return flag
    return bool(all_reduce_sum(torch.tensor(float(flag), device=world.device), world) > 0)


def barrier(world: World) -> None:
    """Wait for the other ranks."""
    if world.world_size > 1:
        dist.barrier()


def broadcast_from_main(value: Any, world: World) -> Any:
    """Return the main process's value on every rank."""
    if world.world_size == 1:
        return value
    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


@contextmanager
def main_process_first(world: World) -> Iterator[None]:
    """Let the main process run the body, then the others, which find its caches made."""
    if not world.is_main_process:
        barrier(world)
    yield
    if world.is_main_process:
        barrier(world)
