"""Processes of a training run: devices, communication, and distribution of the model.

The launcher torchrun starts the processes and passes addresses in environment variables. Processes
communicate by NCCL on GPUs and by gloo on CPUs. The strategy "ddp" replicates the model on each
rank. The strategy "fsdp" (FSDP2) shards every parameter over all ranks. The strategy "hybrid"
shards the model over the ranks of a node. Under "hybrid", each node has a copy of the model, so
nodes exchange only gradients.
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

from magneto.training.config import SHARDED, TrainingConfig

if TYPE_CHECKING:
    # Only sharded models need them, and every process would wait a second for their import.
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


# Time for which ranks wait for the first, which prepares the data (NCCL's default is ten minutes).
# torchrun ends all ranks at once if one dies.
TIMEOUT = timedelta(hours=6)


@dataclass(frozen=True)
class World:
    """Rank, device and strategy of this process.

    Attributes:
        rank: Number of this process, counted from 0.
        world_size: Number of all processes.
        device: Device of this process.
        strategy: Parallel strategy: "none", "ddp", "fsdp" or "hybrid".
        shard_size: Number of consecutive ranks that share one copy of the model. With a
            `shard_size` of 1, each rank has a whole copy of the model.
    """

    rank: int
    world_size: int
    device: torch.device
    strategy: str
    shard_size: int = 1

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        return self.strategy in SHARDED

    @property
    def replicas(self) -> int:
        return self.world_size // self.shard_size

    def autocast(self, precision: str) -> torch.autocast:
        """Return a context manager for computation in "bf16" or "fp32"."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bf16")

    def describe(self) -> str:
        strategy = "" if self.strategy == "none" else f", {self.strategy}"
        if self.strategy == "hybrid":
            strategy += f" ({self.replicas} copies, each in {self.shard_size} shards)"
        return f"{self.world_size} x {self.device.type}{strategy}"


def single_process(device: torch.device) -> World:
    return World(0, 1, device, "none")


def current_world(device: torch.device) -> World:
    """Return the `World` of this process, with the strategy "ddp" or "none"."""
    if not dist.is_initialized():
        return single_process(device)
    return World(dist.get_rank(), dist.get_world_size(), device, "ddp")


def pick_strategy(config: TrainingConfig) -> str:
    """Return the strategy. "auto" is "ddp" if torchrun started several processes, else "none".

    Raises:
        ValueError: If the strategy or the shard size does not fit torchrun's processes.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    strategy = config.distributed
    if strategy == "auto":
        strategy = "ddp" if world_size > 1 else "none"
    if strategy == "none" and world_size > 1:
        raise ValueError(
            f"torchrun started {world_size} processes: set --distributed ddp, fsdp or hybrid"
        )
    if strategy != "none" and "RANK" not in os.environ:
        raise ValueError(
            f"--distributed {strategy} needs torchrun: "
            "torchrun --nproc-per-node 2 -m magneto train RECIPE ..."
        )
    pick_shard_size(config, strategy, world_size)
    return strategy


def pick_shard_size(config: TrainingConfig, strategy: str, world_size: int) -> int:
    if strategy != "hybrid":
        return world_size if strategy in SHARDED else 1
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    size = config.shard_size or here
    if world_size % size:
        whose = "training.shard_size" if config.shard_size else "the number of processes of a node"
        raise ValueError(
            f"hybrid sharding: {whose} ({size}) must divide the number of all processes "
            f"({world_size}); set --training.shard_size to a divisor of {world_size}"
        )
    return size


@contextmanager
def join_world(config: TrainingConfig) -> Iterator[World]:
    """Connect this process with the run's other processes, if any, until the block ends."""
    strategy = pick_strategy(config)
    device = pick_device(config.device)
    if strategy == "none":
        yield single_process(device)
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
                f"hybrid sharding: nodes have {' and '.join(map(str, sizes))} processes. Start "
                "the same number of processes on each node, or set --training.shard_size"
            )
        yield world
    finally:
        dist.destroy_process_group()


@contextmanager
def training_process(config: TrainingConfig) -> Iterator[World]:
    """Connect to the other processes, and configure threads and memory for training."""
    if config.threads:
        torch.set_num_threads(config.threads)
    with join_world(config) as world, keep_freed_memory(world.device):
        yield world


def rendezvous_options() -> dict[str, Any]:
    """Return arguments of `init_process_group` for the rendezvous.

    After torchrun has restarted the workers, torchrun's key-value store still has the old
    addresses. On one machine, each restart therefore uses a new prefix for its keys. On several
    machines, there is no prefix, since each machine counts restarts separately.
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
    """Return a device by name. "auto" is this rank's GPU if torch finds one, else the CPU.

    Raises:
        ValueError: If torch can't compute on the device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        why = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(
            f"training.device {name!r}: torch can't compute on this device ({why}). torch finds "
            f"{torch.cuda.device_count()} GPUs, numbered from 0. Use 'auto', 'cpu' or 'cuda'."
        ) from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # torch has a single CPU device: cpu:99 is the same.
    return torch.device("cpu") if device.type == "cpu" else device


def local_parts(config: TrainingConfig, world: World) -> tuple[list[int], int]:
    """Return `wanted` and `parts` of `BatchStream.batch` for this rank.

    Each step's batch is divided into `parts` micro-batches, the micro-batches of all ranks.
    `wanted` are the indices of this rank's micro-batches.
    """
    accumulated = config.gradient_accumulation_steps
    parts = world.world_size * accumulated
    if config.batch_size < parts:
        raise ValueError(
            f"training.batch_size ({config.batch_size}) is less than world size x "
            f"gradient_accumulation_steps ({world.world_size} x {accumulated}). Use a larger batch."
        )
    first = world.rank * accumulated
    return list(range(first, first + accumulated)), parts


def all_reduce_sum(tensor: Tensor, world: World) -> Tensor:
    """Sum a tensor over all ranks, in place."""
    if world.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def gather_rows(tensor: Tensor, world: World) -> Tensor:
    """Join the rows of all ranks, and return the result on every rank.

    The function is slow, since the rows are copied through CPU memory.
    """
    if world.world_size == 1:
        return tensor
    return torch.cat(gather_lists([tensor.cpu()], world)).to(tensor.device)


def any_rank(flag: bool, world: World) -> bool:
    """Return whether the flag is set on any rank. The function waits for all ranks."""
    if world.world_size == 1:
        return flag
    return bool(all_reduce_sum(torch.tensor(float(flag), device=world.device), world) > 0)


def barrier(world: World) -> None:
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
    """Call a function on the main process only. Return the result on every rank."""
    return broadcast_from_main(function(*given) if world.is_main_process else None, world)


def gather_lists(
    values: list[Any], world: World, group: dist.ProcessGroup | None = None
) -> list[Any]:
    """Return the concatenated lists of all ranks on every rank."""
    if world.world_size == 1:
        return values
    held: list[Any] = [None] * world.world_size
    dist.all_gather_object(held, values, group=group)
    return [value for part in held for value in part]


@contextmanager
def main_process_first(world: World) -> Iterator[None]:
    """Run the block on the main process first, so that the other ranks find filled caches."""
    if not world.is_main_process:
        barrier(world)
    yield
    if world.is_main_process:
        barrier(world)


def shard_model(model: nn.Module, world: World) -> nn.Module:
    """Shard the model in place. Each layer is an FSDP unit, and the rest of the model is another.

    If the model is on the meta device, no rank ever has the whole model in memory.
    """
    if world.is_sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # Without a mesh, FSDP takes a machine's GPU even if the ranks run on its CPU.
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
    """Wrap the model for "ddp", which averages gradients over ranks.

    Buffers are not broadcast, since `Task.end_step` sums their changes over ranks.
    """
    if world.strategy != "ddp":
        return model
    with warnings.catch_warnings():
        # The replacement is not in torch 2.11.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, broadcast_buffers=False)


def unwrap(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def is_fsdp(model: nn.Module) -> TypeGuard[FSDPModule]:
    return hasattr(model, "set_requires_gradient_sync")


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "device_mesh")


def gradient_sync(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Return a context that exchanges gradients only in the last micro-batch."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if is_fsdp(model):
        model.set_requires_gradient_sync(last)
    return nullcontext()


def reshard(model: nn.Module) -> None:
    """Free the parameters that FSDP keeps after a forward pass without a backward pass.

    Call `reshard` before you replace weights. Otherwise, FSDP would continue to use the old values.
    """
    if is_fsdp(model):
        model.reshard()


def local_shard(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor that this rank has in memory.

    Attributes:
        tensor: This rank's rows, which share memory with the model.
        start: Number of the first row.
        shape: Shape of the whole tensor.
        sharded: True if the rows are divided over ranks, False if each rank has all rows.
        replica: Index of this rank's copy of the model, 0 unless the strategy is "hybrid".
    """

    tensor: Tensor
    start: int
    shape: tuple[int, ...]
    sharded: bool
    replica: int = 0

    @property
    def stop(self) -> int:
        return self.start + (len(self.tensor) if self.shape else 1)


def piece_of(tensor: Tensor) -> Piece:
    """Return the rows of a tensor that this rank has in memory."""
    tensor = tensor.detach()
    if not is_sharded(tensor):
        return Piece(tensor, 0, tuple(tensor.shape), sharded=False)
    # torch.chunk cuts the rows: the last ranks may have fewer, or none.
    mesh, rows = tensor.device_mesh, tensor.shape[0]
    shards = mesh.ndim - 1
    start = min(mesh.get_local_rank(shards) * math.ceil(rows / mesh.size(shards)), rows)
    replica = mesh.get_local_rank(0) if mesh.ndim > 1 else 0
    return Piece(tensor.to_local(), start, tuple(tensor.shape), sharded=True, replica=replica)


class Interrupt:
    """Handler that ends a run with a checkpoint after Ctrl-C or SIGTERM.

    The first signal sets the attribute `requested`. A second Ctrl-C raises KeyboardInterrupt. A
    second SIGTERM changes nothing, since a scheduler and a launcher may both send SIGTERM.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.requested = False
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
            self.say("stopping after this step with a checkpoint; press Ctrl-C to stop at once")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        except ValueError:
            self._previous = {}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


# glibc's malloc.h: parameters of mallopt and their defaults (mallopt(3)).
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
MALLOC_DEFAULT = 128 * 1024
# Largest block taken from the heap, and largest free memory kept at its top, in bytes.
LARGEST_BLOCK, LARGEST_TOP = 1 << 30, (1 << 31) - 1
MALLOC_VARIABLES = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}


@contextmanager
def keep_freed_memory(
    device: torch.device, environment: Mapping[str, str] = os.environ
) -> Iterator[bool]:
    """Make malloc keep freed memory for reuse inside the block.

    This works on a CPU with glibc, if the environment sets no malloc thresholds. Otherwise, the
    context manager yields False.
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
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError):
        return None
    return ctypes.CDLL(None) if version else None
