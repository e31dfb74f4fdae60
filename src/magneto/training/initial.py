"""The model that training begins with: the same bits on one process and on any ranks.

The model is built on the meta device, cut among the ranks, and drawn there module by module, so
that no process ever holds the whole. A module's draws depend on the seed and on its name alone.

That is possible where every module that holds tensors fills them in `reset_parameters`, as torch's
own modules and this library's do, and nothing changes them afterwards: then drawing a module again
gives what building it gave. Where a model is built otherwise (a value set by its parent, a bare
parameter, weights that are loaded), every process builds all of it and keeps its rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from magneto.data.stream import BatchStream, to_device
from magneto.training.checkpoint import fill, model_pieces
from magneto.training.distributed import (
    World,
    gather_rows,
    piece_of,
    replicate_model,
    shard_model,
    unwrap,
)
from magneto.training.task import Task

# What fills the tensors of a model that is built, and changes nothing else.
FILLS = {
    torch.ops.aten.normal_.default,
    torch.ops.aten.uniform_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.zero_.default,
}


class SkippedFills(TorchDispatchMode):
    """Leaves out what fills tensors on the meta device.

    There is nothing to fill, and torch takes longer for it than for making the tensor: of the start
    of a model of 100 layers it was an eighth.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, or return the tensor that it would fill."""
        if func in FILLS and isinstance(args[0], Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@runtime_checkable
class Resets(Protocol):
    """A module that can fill the tensors that it holds itself."""

    def reset_parameters(self) -> None:
        """Draw them from torch's current random state."""
        ...


def initial_model(
    task: Task, seed: int, world: World, say: Callable[[str], None] = lambda line: None
) -> nn.Module:
    """Build a task's model with the weights that training begins with, distributed over the ranks.

    Args:
        task: Prepared.
        seed: Of the draws.
        world: The ranks. Every one calls this.
        say: Told why each rank had to build the whole model, before it is sharded.
    """
    model, reason = build_on_meta(task)
    if model is not None:
        shard_model(model, world)
        materialize(model, world.device)
        draw_parameters(model, seed)
    else:
        if world.is_sharded:
            say(f"each rank builds the whole model before it is sharded: {reason}")
        torch.manual_seed(seed)
        model = shard_model(task.build_model().to(world.device), world)
    given = task.initial_weights()
    pieces = model_pieces(model)
    fill({name: piece for name, piece in pieces.items() if name in given}, given, "the task")
    return replicate_model(model.train(), world)


@torch.no_grad()
def values_from_data(
    task: Task,
    model: nn.Module,
    stream: BatchStream,
    parts: int,
    wanted: Sequence[int],
    world: World,
) -> None:
    """Let a task make first values of data where it has some (`Task.begin_training`).

    Args:
        task: Prepared.
        model: As `initial_model` gave it.
        stream: Of training batches.
        parts: In how many pieces a batch is cut.
        wanted: This rank's pieces.
        world: The ranks. Every one calls this.
    """

    def batches() -> Iterator[list[Any]]:
        for pieces in stream.batches(parts, wanted):
            yield [to_device(piece, world.device) for piece in pieces]

    task.begin_training(unwrap(model), batches(), partial(gather_rows, world=world))


def build_on_meta(task: Task) -> tuple[nn.Module | None, str]:
    """Build a model without memory; or return None, and why it can't be drawn module by module.

    Args:
        task: Prepared.
    """
    try:
        with torch.device("meta"), Writes() as building:
            model = task.build_model()
        reason = why_not_by_module(model, building)
    except RuntimeError as error:  # it reads a value, which on the meta device is not there
        return None, str(error).splitlines()[0]
    return (None, reason) if reason else (model, "")


class Writes(SkippedFills):
    """Notes what is written into each tensor's memory: the operations and their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, list[Any]] = {}
        self._kept: list[Tensor] = []  # so that no address is used twice

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, unless it fills what has no values; note what it changes in place."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info and argument.alias_info.is_write and isinstance(value, Tensor):
                # Values that come from another tensor are not known: equal to nothing.
                rest = [object() if isinstance(x, Tensor) else x for x in args if x is not value]
                place = (value.storage_offset(), tuple(value.shape), value.stride())
                self.found.setdefault(memory(value), []).append((func, place, rest))
                self._kept.append(value)
        return super().__torch_dispatch__(func, types, args, kwargs)


def memory(tensor: Tensor) -> int:
    """Return what two tensors have in common that share their memory."""
    return tensor.untyped_storage()._cdata


def why_not_by_module(model: nn.Module, building: Writes) -> str:
    """Return why a model on the meta device can't be drawn module by module, or nothing.

    Args:
        model: Just built.
        building: What was written while it was built.
    """
    everything = {memory(tensor) for _, tensor in all_tensors(model)}
    seen: set[int] = set()
    for name, module in model.named_modules():
        own = {key: t for key, t in own_tensors(module).items() if memory(t) not in seen}
        if not own:
            continue
        held = {memory(tensor) for tensor in own_tensors(module).values()}
        if not isinstance(module, Resets):
            return f"{name or 'the model'} has no reset_parameters"
        with Writes() as drawing:
            module.reset_parameters()
        if (drawing.found.keys() & everything) - held:
            return f"reset_parameters of {name or 'the model'} changes other modules too"
        for key, tensor in own.items():
            again = drawing.found.get(memory(tensor), [])
            before = building.found.get(memory(tensor), [])
            if not again or before[-len(again) :] != again:
                return f"{f'{name}.{key}'.lstrip('.')} is not what reset_parameters makes it"
        seen |= held
    return ""


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that a module holds itself."""
    return dict((*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)))


def all_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and buffer below a module, a tied one under each of its names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def materialize(model: nn.Module, device: torch.device) -> None:
    """Give a model on the meta device memory, of this rank's rows where it is sharded."""
    first: dict[int, str] = {}
    ties = [(name, first.setdefault(id(tensor), name)) for name, tensor in all_tensors(model)]
    model.to_empty(device=device)
    made = dict(all_tensors(model))
    for name, source in ties:
        if name != source:
            owner, _, key = name.rpartition(".")
            setattr(model.get_submodule(owner), key, made[source])


@torch.no_grad()
def draw_parameters(model: nn.Module, seed: int) -> None:
    """Draw every module's own tensors, whole, on the CPU; keep the rows that this rank holds.

    A tied tensor is drawn by the first module that holds it.
    """
    drawn: set[int] = set()
    with torch.random.fork_rng(devices=[]):
        for name, module in model.named_modules():
            own = own_tensors(module)
            fresh = {key: tensor for key, tensor in own.items() if id(tensor) not in drawn}
            if fresh:
                torch.manual_seed(module_seed(seed, name))
                keep_rows(fresh, draw_whole(module, own))
                drawn |= {id(tensor) for tensor in fresh.values()}


def keep_rows(own: dict[str, Tensor], whole: dict[str, Tensor]) -> None:
    """Copy whole values, by their names, into a module's tensors, as far as this rank has them."""
    for key, tensor in own.items():
        piece = piece_of(tensor)
        rows = whole[key][piece.start : piece.stop] if piece.shape else whole[key]
        piece.tensor.copy_(rows)


def draw_whole(module: nn.Module, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what a module's `reset_parameters` draws, whole and on the CPU; leave it as it was."""
    whole = {key: torch.empty(t.shape, dtype=t.dtype) for key, t in own.items()}
    try:
        for key, tensor in own.items():
            setattr(module, key, as_kind_of(tensor, whole[key]))
        if isinstance(module, Resets):
            module.reset_parameters()
    finally:
        for key, tensor in own.items():
            setattr(module, key, tensor)
    return whole


def as_kind_of(tensor: Tensor, value: Tensor) -> Tensor:
    """Return a value as a parameter where the tensor is one."""
    return nn.Parameter(value, requires_grad=False) if isinstance(tensor, nn.Parameter) else value


def module_seed(seed: int, name: str) -> int:
    """Return the seed of one module's draws."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
