"""The processes of a training: their devices, what they exchange, and how a model lies on them.

Started by torchrun, processes find each other through its environment variables: NCCL on GPUs, gloo
on CPUs. "ddp" keeps a copy of the model on each rank, "fsdp" (FSDP2) a shard of every parameter.
"hybrid" keeps a copy in the ranks of each node, and of it a shard on each: layers are gathered
within a node, and only gradients of shards are added up between nodes.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from magneto.training.config import TrainingConfig

if TYPE_CHECKING:
    # Only sharded models need them, and every process would wait a second for their import.
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


# How long ranks wait for the first, which prepares the data; by default NCCL gives up after ten
# minutes. A rank that dies ends the others at once: torchrun sees to it.
TIMEOUT = timedelta(hours=6)
# Strategies under which a rank holds a shard of the model.
SHARDED = ("fsdp", "hybrid")


@dataclass(frozen=True)
class World:
    """This process among all.

    Attributes:
        rank: Number of this process, from 0.
        world_size: How many processes there are.
        device: Where its tensors live.
        strategy: "none", "ddp", "fsdp" or "hybrid".
        shard_size: How many ranks, one after the other, hold one copy of the model among them: 1
            where each holds all of it.
    """

    rank: int
    world_size: int
    device: torch.device
    strategy: str
    shard_size: int = 1

    @property
    def is_main_process(self) -> bool:
        """True on the rank that writes files and prints."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """True where FSDP holds the model, even if all shards are one rank's."""
        return self.strategy in SHARDED

    @property
    def replicas(self) -> int:
        """How many copies of the model there are."""
        return self.world_size // self.shard_size

    def describe(self) -> str:
        """Say how many ranks there are, on what, and how a model lies on them."""
        strategy = "" if self.strategy == "none" else f", {self.strategy}"
        if self.strategy == "hybrid":
            strategy += f" ({self.replicas} copies in {self.shard_size} shards)"
        return f"{self.world_size} x {self.device.type}{strategy}"


def one_process(device: torch.device) -> World:
    """Return the world of a process that is alone."""
    return World(0, 1, device, "none")


def joined_world(device: torch.device) -> World:
    """Return the world that this process is in (`join_world`), each rank with a whole model."""
    if not dist.is_initialized():
        return one_process(device)
    return World(dist.get_rank(), dist.get_world_size(), device, "ddp")


def pick_strategy(config: TrainingConfig) -> str:
    """Return the strategy; "auto" is "ddp" where torchrun has started several processes.

    Raises:
        ValueError: If `distributed` asks for several processes and torchrun started none, or the
            other way; or the ranks can't be cut into shards of the size that is asked for.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    strategy = config.distributed
    if strategy == "auto":
        strategy = "ddp" if world_size > 1 else "none"
    if strategy == "none" and world_size > 1:
        raise ValueError(
            f"torchrun started {world_size} processes: say --distributed ddp, fsdp or hybrid"
        )
    if strategy != "none" and "RANK" not in os.environ:
        raise ValueError(
            f"--distributed {strategy} needs torchrun: "
            "torchrun --nproc-per-node 2 -m magneto train RECIPE ..."
        )
    pick_shard_size(config, strategy, world_size)
    return strategy


def pick_shard_size(config: TrainingConfig, strategy: str, world_size: int) -> int:
    """Return how many ranks hold one copy of the model among them.

    Raises:
        ValueError: If the ranks of "hybrid" can't be cut into so many.
    """
    if strategy != "hybrid":
        return world_size if strategy in SHARDED else 1
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    size = config.shard_size or here
    if world_size % size:
        whose = "training.shard_size" if config.shard_size else "the number of processes of a node"
        raise ValueError(
            f"hybrid sharding: {whose} is {size}, which does not divide the {world_size} processes"
        )
    return size


@contextmanager
def join_world(config: TrainingConfig) -> Iterator[World]:
    """Join the other processes, if there are any, and leave them at the end.

    Raises:
        ValueError: As `pick_strategy` and `pick_device` do; or if nodes have unequal numbers of
            processes, and shards were to be within a node.
    """
    strategy = pick_strategy(config)
    device = pick_device(config.device)
    if strategy == "none":
        yield one_process(device)
        return
    options = rendezvous_options()
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device, timeout=TIMEOUT, **options)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT, **options)
    try:
        size = pick_shard_size(config, strategy, dist.get_world_size())
        world = World(dist.get_rank(), dist.get_world_size(), device, strategy, size)
        sizes = sorted(set(gather_lists([size], world)))
        if len(sizes) > 1:
            raise ValueError(
                f"hybrid sharding: nodes have {' and '.join(map(str, sizes))} processes; start as "
                "many on each, or give --training.shard_size"
            )
        yield world
    finally:
        dist.destroy_process_group()


def rendezvous_options() -> dict[str, Any]:
    """Return where the processes find each other, as `init_process_group` takes it.

    torchrun keeps one store over its restarts of a worker, in which the addresses of processes that
    are gone stand until they are overwritten: on one machine each start has names of its own. Where
    there are more, the machines count their restarts differently.
    """
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if start == "0" or os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return {}
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world_size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    return {
        "store": PrefixStore(f"start-{start}", store), "rank": rank, "world_size": world_size
    }  # fmt: skip


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
    if device.type not in ("cpu", "cuda") and not can_compute_on(device):
        raise ValueError(f"training.device is {name}, and torch can't compute on one here")
    if device.type == "cpu":
        return torch.device("cpu")  # torch counts none: cpu:99 is the same
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("training.device is cuda, and there is no GPU that torch can use here")
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        count = torch.cuda.device_count()
        if device.index >= count:
            raise ValueError(f"training.device: there is no {device}, torch sees {count} GPUs here")
        torch.cuda.set_device(device)
    return device


def can_compute_on(device: torch.device) -> bool:
    """Return whether a tensor can be made and read on a device; on "meta" it has no values."""
    try:
        return torch.ones(1, device=device).item() == 1
    except (RuntimeError, AssertionError, ImportError, NotImplementedError):
        return False


def local_parts(config: TrainingConfig, world: World) -> tuple[list[int], int]:
    """Return which parts of a batch are this rank's micro-batches, and in how many it is cut.

    Raises:
        ValueError: If the batch has fewer examples than parts.
    """
    accumulated = config.gradient_accumulation_steps
    count = world.world_size * accumulated
    if config.batch_size < count:
        raise ValueError(
            f"training.batch_size ({config.batch_size}) is less than world size x "
            f"gradient_accumulation_steps ({world.world_size} x {accumulated})"
        )
    first = world.rank * accumulated
    return list(range(first, first + accumulated)), count


def all_reduce_sum(tensor: Tensor, world: World) -> Tensor:
    """Add a tensor up over all ranks, in place."""
    if world.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def gather_rows(tensor: Tensor, world: World) -> Tensor:
    """Return the rows of all ranks' tensors, rank by rank, on every rank; their numbers may differ.

    By way of the CPU: for what is done once.
    """
    if world.world_size == 1:
        return tensor
    return torch.cat(gather_lists([tensor.cpu()], world)).to(tensor.device)


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


def call_on_main(world: World, function: Callable[..., Any], *given: Any) -> Any:
    """Return on every rank what a function returns on the main process, the only one to call it."""
    return broadcast_from_main(function(*given) if world.is_main_process else None, world)


def gather_lists(values: list[Any], world: World) -> list[Any]:
    """Return the values of all ranks' lists, rank by rank, on every rank."""
    if world.world_size == 1:
        return values
    held: list[Any] = [None] * world.world_size
    dist.all_gather_object(held, values)
    return [value for part in held for value in part]


@contextmanager
def main_process_first(world: World) -> Iterator[None]:
    """Let the main process run the body, then the others, which find its caches made."""
    if not world.is_main_process:
        barrier(world)
    yield
    if world.is_main_process:
        barrier(world)


def shard_model(model: nn.Module, world: World) -> nn.Module:
    """Cut every layer, and what is around the layers, into the world's shards; in place.

    The model may be on the meta device, so that no rank ever holds all of it.
    """
    if world.is_sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # Without a mesh, FSDP takes the GPU of a machine that has one, even for ranks on its CPU.
        shape, names = (world.replicas, world.shard_size), ("replicate", "shard")
        first = 0 if world.replicas > 1 else 1
        mesh = init_device_mesh(world.device.type, shape[first:], mesh_dim_names=names[first:])
        for module in model.modules():
            if isinstance(module, nn.ModuleList):
                for layer in module:
                    fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def replicate_model(model: nn.Module, world: World) -> nn.Module:
    """Let the ranks of "ddp" add up their gradients.

    Buffers are each rank's own: what a step adds to them is added up once, by `Task.end_step`.
    """
    if world.strategy != "ddp":
        return model
    with warnings.catch_warnings():
        # Its successor is not in torch 2.11, and copies buffers once all the same.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, broadcast_buffers=False)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model without the wrapper that `replicate_model` may have put around it."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def is_fsdp(model: nn.Module) -> TypeGuard[FSDPModule]:
    """Return whether `shard_model` has cut this module."""
    return hasattr(model, "set_requires_gradient_sync")


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether each rank holds a shard of this tensor: only those have a mesh of devices."""
    return hasattr(tensor, "device_mesh")


def gradient_sync(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Let ranks exchange gradients in the last micro-batch only."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if is_fsdp(model):
        model.set_requires_gradient_sync(last)
    return nullcontext()


def reshard(model: nn.Module) -> None:
    """Drop the whole parameters that FSDP's root keeps after a forward pass without a backward.

    Otherwise it would take them for current after the weights have been exchanged.
    """
    if is_fsdp(model):
        model.reshard()


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


@dataclass(frozen=True)
class Piece:
    """What this rank holds of a tensor: some of its rows, or all of it.

    Attributes:
        tensor: The rows, the very memory of the model, detached.
        start: Number of the first row.
        shape: Of the whole tensor.
        sharded: Whether other ranks hold other rows; if not, each holds everything.
        replica: Number of the copy of the model whose shard it is; others hold the same rows.
    """

    tensor: Tensor
    start: int
    shape: tuple[int, ...]
    sharded: bool
    replica: int = 0

    @property
    def stop(self) -> int:
        """Number of the row after the last; a scalar is its only row."""
        return self.start + (len(self.tensor) if self.shape else 1)


def piece_of(tensor: Tensor) -> Piece:
    """Return what this rank holds of a tensor."""
    tensor = tensor.detach()
    if not is_sharded(tensor):
        return Piece(tensor, 0, tuple(tensor.shape), sharded=False)
    # Rows are cut as torch.chunk cuts them: the last ranks may have fewer, or none.
    mesh, rows = tensor.device_mesh, tensor.shape[0]
    shards = mesh.ndim - 1
    start = min(mesh.get_local_rank(shards) * math.ceil(rows / mesh.size(shards)), rows)
    replica = mesh.get_local_rank(0) if mesh.ndim > 1 else 0
    return Piece(tensor.to_local(), start, tuple(tensor.shape), sharded=True, replica=replica)


class Interrupt:
    """Within it a first signal sets `requested`; a second Ctrl-C raises KeyboardInterrupt.

    SIGTERM only asks, however often it comes: a scheduler and a launcher may both pass it on.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.requested = False
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
            self.say("stopping after this step, with a checkpoint; Ctrl-C stops at once")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        """Listen; only the main thread may handle signals, in others this does nothing."""
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        except ValueError:
            self._previous = {}
        return self

    def __exit__(self, *error: object) -> None:
        """Give the signals back to whom they belonged."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)


# glibc's malloc.h: names of settings for mallopt, and their defaults (mallopt(3)).
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
MALLOC_DEFAULT = 128 * 1024
# Blocks up to so many bytes come from the heap, and so many stay free at its end.
LARGEST_BLOCK, LARGEST_TOP = 1 << 30, (1 << 31) - 1
MALLOC_VARIABLES = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}


@contextmanager
def keep_freed_memory(
    device: torch.device, environment: Mapping[str, str] = os.environ
) -> Iterator[bool]:
    """Keep freed memory inside, give all back at the end; yield whether that is done.

    The numbers that are computed do not depend on it. Nothing is done for other devices than a CPU,
    without glibc, and where the environment sets malloc's thresholds itself.
    """
    libc = glibc()
    if device.type != "cpu" or libc is None or MALLOC_VARIABLES & environment.keys():
        yield False
        return
    libc.mallopt(MMAP_THRESHOLD, LARGEST_BLOCK)
    libc.mallopt(TRIM_THRESHOLD, LARGEST_TOP)
    try:
        yield True
    finally:
        libc.mallopt(MMAP_THRESHOLD, MALLOC_DEFAULT)
        libc.mallopt(TRIM_THRESHOLD, MALLOC_DEFAULT)
        libc.malloc_trim(0)


def glibc() -> ctypes.CDLL | None:
    """Return the C library of this process, if it is glibc."""
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError):
        return None
    return ctypes.CDLL(None) if version else None
