"""One process or many: who am I, how is the model spread, how are sums taken over all.

Started by torchrun, ranks find each other through its environment variables: NCCL on GPUs, gloo on
CPUs. "ddp" keeps a copy of the model on each rank, "fsdp" (FSDP2) a share of every parameter.
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
class Ranks:
    """This process among all.

    Attributes:
        rank: Its number, from 0.
        size: How many there are.
        device: Where its tensors live.
        kind: "none", "ddp" or "fsdp".
    """

    rank: int
    size: int
    device: torch.device
    kind: str

    @property
    def first(self) -> bool:
        """True on the rank that writes files and talks."""
        return self.rank == 0


@contextmanager
def ranks(config: TrainingConfig) -> Iterator[Ranks]:
    """Join the other processes, if there are any, and leave them at the end.

    Raises:
        ValueError: If `distributed` asks for ranks and torchrun started none, or the other way.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    kind = config.distributed
    if kind == "auto":
        kind = "ddp" if size > 1 else "none"
    if kind == "none" and size > 1:
        raise ValueError(f"torchrun started {size} processes: say --distributed ddp or fsdp")
    if kind != "none" and "RANK" not in os.environ:
        raise ValueError(
            f"--distributed {kind} needs torchrun: "
            "torchrun --nproc-per-node 2 -m magneto train RECIPE ..."
        )
    device = pick_device(config.device)
    if kind == "none":
        yield Ranks(0, 1, device, kind)
        return
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), device, kind)
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


def spread(model: nn.Module, among: Ranks) -> nn.Module:
    """Spread a model over the ranks: as it is, copied, or every layer in shares."""
    if among.kind == "ddp":
        return DistributedDataParallel(model)
    if among.kind == "fsdp":
        for module in model.modules():
            if isinstance(module, nn.ModuleList):
                for layer in module:
                    fully_shard(layer)
        fully_shard(model)  # in place
    return model


def bare(model: nn.Module) -> nn.Module:
    """Return the model without the wrapper that `spread` may have put around it."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def give_back_gathered(model: nn.Module) -> None:
    """Drop the whole parameters that FSDP's root keeps after a forward pass without a backward.

    Otherwise it would take them for current after the weights have been exchanged.
    """
    if isinstance(model, FSDPModule):
        model.reshard()


def local(tensor: Tensor) -> Tensor:
    """Return this rank's share of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_over_ranks(tensor: Tensor, among: Ranks) -> Tensor:
    """Add a tensor up over all ranks, in place."""
    if among.size > 1:
        dist.all_reduce(tensor)
    return tensor


def any_rank(flag: bool, among: Ranks) -> bool:
    """Return whether the flag is set on any rank; waits for the others."""
    if among.size == 1:
        return flag
    return bool(sum_over_ranks(torch.tensor(float(flag), device=among.device), among) > 0)


def barrier(among: Ranks) -> None:
    """Wait for the other ranks."""
    if among.size > 1:
        dist.barrier()


def from_first(value: Any, among: Ranks) -> Any:
    """Return the first rank's value on every rank."""
    if among.size == 1:
        return value
    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


@contextmanager
def first_goes_ahead(among: Ranks) -> Iterator[None]:
    """Let the first rank run the body, then the others, which find its caches made."""
    if not among.first:
        barrier(among)
    yield
    if among.first:
        barrier(among)
