"""How a model lies on the ranks: a copy on each (DDP), shards of it (FSDP2), or copies in shards.

"ddp" keeps a copy of the model on each rank, "fsdp" a shard of every parameter. "hybrid" keeps a
copy in the ranks of each node, and of it a shard on each: layers are gathered within a node, and
only gradients of shards are added up between nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from magneto.training.distributed import World

if TYPE_CHECKING:
    # Only sharded models need them, and every process would wait a second for their import.
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


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
