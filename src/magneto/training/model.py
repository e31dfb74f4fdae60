"""A task's model before its first step: its size and operations by shapes alone, and first values.

The first values are the same bits on one process and on any ranks. The model is built on the meta
device, cut among the ranks, and drawn there module by module, so that no process ever holds the
whole. A module's draws depend on the seed and on its name alone.

That is possible where every module that holds tensors fills them in `reset_parameters`, as torch's
own modules and this library's do, and nothing changes them afterwards: then drawing a module again
gives what building it gave. Where a model is built otherwise (a value set by its parent, a bare
parameter, weights that are loaded), every process builds all of it and keeps its rows.
"""

from __future__ import annotations

import hashlib
import math
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from magneto.data.stream import BatchStream, map_tensors, named_tensors, to_device
from magneto.nn.parametrization import scale_initial_values, width_scales
from magneto.training.checkpoint import load_pieces, model_pieces
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    World,
    gather_rows,
    piece_of,
    replicate_model,
    shard_model,
    unwrap,
)
from magneto.training.task import Task, count_units

# What fills the tensors of a model that is built, and changes nothing else.
FILLS = {
    torch.ops.aten.normal_.default,
    torch.ops.aten.uniform_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.zero_.default,
}


class FillRecorder(TorchDispatchMode):
    """Leaves out what fills tensors on the meta device, and notes what is written into each tensor.

    There is nothing to fill, and torch takes longer for it than for making the tensor: of the start
    of a model of 100 layers it was an eighth.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[int, list[Any]] = {}
        self._kept: list[Tensor] = []  # so that no address is used twice

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, or return the tensor that it would fill; note what it changes."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info and argument.alias_info.is_write and isinstance(value, Tensor):
                # Values that come from another tensor are not known: equal to nothing.
                rest = [object() if isinstance(x, Tensor) else x for x in args if x is not value]
                place = (value.storage_offset(), tuple(value.shape), value.stride())
                self.writes.setdefault(storage_of(value), []).append((func, place, rest))
                self._kept.append(value)
        if func in FILLS and isinstance(args[0], Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def storage_of(tensor: Tensor) -> int:
    """Return what two tensors have in common that share their memory."""
    return tensor.untyped_storage()._cdata


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
    model, reason = build_on_meta(task.build_model)
    if model is not None:
        shard_model(model, world)
        materialize(model, world.device)
        draw_parameters(model, seed)
    else:
        if world.is_sharded:
            say(f"each rank builds the whole model before it is sharded: {reason}")
        torch.manual_seed(seed)
        model = shard_model(task.build_model().to(world.device), world)
    scale_initial_values(model, width_scales(model))
    given = task.initial_weights()
    pieces = model_pieces(model)
    load_pieces({name: piece for name, piece in pieces.items() if name in given}, given, "the task")
    return replicate_model(model.train(), world)


@torch.no_grad()
def initialise_from_data(
    task: Task,
    model: nn.Module,
    stream: BatchStream,
    count: int,
    parts: Sequence[int],
    world: World,
) -> None:
    """Let a task make first values of data where it has some (`Task.begin_training`).

    Every rank calls this, with its parts of a batch that is cut into `count`.
    """

    def batches() -> Iterator[list[Any]]:
        for pieces in stream.batches(count, parts):
            yield [to_device(piece, world.device) for piece in pieces]

    task.begin_training(unwrap(model), batches(), partial(gather_rows, world=world))


def build_on_meta(build: Callable[[], nn.Module]) -> tuple[nn.Module | None, str]:
    """Build a model without memory; or return None, and why it can't be drawn module by module."""
    try:
        with torch.device("meta"), FillRecorder() as building:
            model = build()
        reason = whole_model_reason(model, building)
    except RuntimeError as error:  # it reads a value, which on the meta device is not there
        return None, str(error).splitlines()[0]
    return (None, reason) if reason else (model, "")


def whole_model_reason(model: nn.Module, building: FillRecorder) -> str:
    """Return why a model on the meta device can't be drawn module by module, or nothing."""
    everything = {storage_of(tensor) for _, tensor in all_tensors(model)}
    seen: set[int] = set()
    for name, module in model.named_modules():
        own = {key: t for key, t in own_tensors(module).items() if storage_of(t) not in seen}
        if not own:
            continue
        held = {storage_of(tensor) for tensor in own_tensors(module).values()}
        if (reset := getattr(module, "reset_parameters", None)) is None:
            return f"{name or 'the model'} has no reset_parameters"
        with FillRecorder() as drawing:
            reset()
        if (drawing.writes.keys() & everything) - held:
            return f"reset_parameters of {name or 'the model'} changes other modules too"
        for key, tensor in own.items():
            again = drawing.writes.get(storage_of(tensor), [])
            before = building.writes.get(storage_of(tensor), [])
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
                draw_module(module, own, fresh)
                drawn |= {id(tensor) for tensor in fresh.values()}


def draw_module(module: nn.Module, own: dict[str, Tensor], fresh: dict[str, Tensor]) -> None:
    """Draw a module's own tensors whole, on the CPU; keep this rank's rows of those in `fresh`."""
    whole = {key: torch.empty(t.shape, dtype=t.dtype) for key, t in own.items()}
    try:
        for key, value in whole.items():
            parameter = isinstance(own[key], nn.Parameter)
            setattr(module, key, nn.Parameter(value, requires_grad=False) if parameter else value)
        if (reset := getattr(module, "reset_parameters", None)) is not None:
            reset()
    finally:
        for key, tensor in own.items():
            setattr(module, key, tensor)
    for key, tensor in fresh.items():
        piece = piece_of(tensor)
        piece.tensor.copy_(whole[key][piece.start : piece.stop] if piece.shape else whole[key])


def module_seed(seed: int, name: str) -> int:
    """Return the seed of one module's draws."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def ctc_loss(
    log_probabilities: Tensor, targets: Tensor, lengths: list[int], labels: list[int], *_: Any
) -> tuple[Tensor, Tensor]:
    """Return what `aten::_ctc_loss` gives: a loss for each row, and its lattice of both."""
    frames, rows = log_probabilities.shape[:2]
    new = log_probabilities.new_empty
    return new(rows), new(rows, frames, 2 * max(labels) + 1)


# Operations of which torch knows no shapes without values.
META_SHAPES: dict[Any, Any] = {torch.ops.aten._ctc_loss.default: ctc_loss}


def attention_flops(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Count the two products of attention."""
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def attention_gradient_flops(gradient: Tensor, *given: Tensor, **_: Any) -> int:
    """Count the four products of attention's gradients; the scores that are made again are none."""
    return 2 * attention_flops(*given)


# Attention on a CPU, of which torch counts nothing.
COUNTED: dict[Any, Any] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_gradient_flops,
}


class CountedOperations(TorchDispatchMode):
    """Adds up the floating-point operations of products, by torch's formulas for their shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, or return what has the shapes of its results; count it."""
        kwargs = kwargs or {}
        result = META_SHAPES.get(func, func)(*args, **kwargs)
        if (flops := COUNTED.get(func._overloadpacket)) is not None:
            self.total += flops(*args, **kwargs, out_val=result)
        return result


def count_flops(task: Task, batch: Any, precision: str = "fp32") -> tuple[float, int]:
    """Count the floating-point operations of one forward and backward pass.

    Tensors have only shapes: nothing is computed, and nothing takes memory. Recomputed activations
    are counted where the model recomputes them.

    Args:
        task: Prepared; its companion, if it has one, on the CPU.
        batch: On the CPU.
        precision: "bf16" or "fp32", as in training.

    Returns:
        The number, and the units of the batch; not a number, and 1, where the model or the loss
        looks at values, which are not there.
    """
    task.companion()  # made here, with values
    fake, counted = FakeTensorMode(allow_non_fake_inputs=True), CountedOperations()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    try:
        with fake:
            model = task.build_model().train()
            piece = map_tensors(batch, fake.from_tensor)
            with counted:
                with autocast:
                    loss = task.loss(model, piece)
                loss.total.backward()
    except RuntimeError:
        return math.nan, 1
    return counted.total, max(count_units(loss, batch), 1)


# Examples that are looked at to tell how much a batch needs.
SAMPLE_SIZE = 12

# Numbers that an optimizer keeps for each trained weight, in the weight's own type.
OPTIMIZER_TENSORS = {"adamw": 2, "sgd": 0}


@dataclass(frozen=True)
class StateBytes:
    """What training a whole model holds because of its weights, whatever the batch, in bytes.

    Attributes:
        weights: Of the parameters that are trained.
        gradients: Of these.
        optimizer: AdamW's two moments of each; nothing for SGD without momentum.
        average: Of the weights, where one is kept (`training.ema_decay`).
    """

    weights: int
    gradients: int
    optimizer: int
    average: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.average


def state_bytes(model: nn.Module, config: TrainingConfig) -> StateBytes:
    """Return what training a model holds because of its trained weights, on any device."""
    trained = tensor_bytes(*(p for p in model.parameters() if p.requires_grad))
    return StateBytes(
        weights=trained,
        gradients=trained,
        optimizer=OPTIMIZER_TENSORS[config.optimizer] * trained,
        average=trained if config.ema_decay else 0,
    )


def tensor_bytes(*tensors: Tensor) -> int:
    """Return the bytes of tensors; a tied one is to be given once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_memory(task: Task, config: TrainingConfig, world: World, seed: int) -> None:
    """See that a training can fit, by the shapes of a model and of a few examples.

    What is counted is the least: weights, gradients and the optimizer's state, and the examples of
    a batch. What passes may still not fit: `magneto plan` looks closer. A model that can't be built
    without values is not asked.

    Raises:
        ValueError: If the memory is less than that; says both, and what to lower.
    """
    try:
        with torch.device("meta"), FillRecorder():
            model = task.build_model()
    except RuntimeError:  # it reads a value
        return
    check_model_memory(model, config, world)
    few = min(config.batch_size, SAMPLE_SIZE)
    try:
        (piece,) = task.train_stream(few, seed).batch(0)
    except ValueError:  # a batch of so few is none
        return
    share = config.batch_size / few / world.world_size
    needed = share * sum(tensor.nbytes for tensor in named_tensors(piece).values())
    available = memory_of(torch.device("cpu"))
    if available is not None and needed > available:
        fitting = int(config.batch_size * available / needed)
        raise ValueError(
            f"training.batch_size {config.batch_size:,}: a batch needs {gigabytes(needed)} and "
            f"more, the cpu here has {gigabytes(available)}, which {fitting:,} examples fill: "
            "lower it or the size of an example"
        )


def check_model_memory(model: nn.Module, config: TrainingConfig, world: World) -> None:
    """See that what a model's weights take in training fits; see `check_memory`."""
    fixed = [p for p in model.parameters() if not p.requires_grad]
    needed = state_bytes(model, config).total + tensor_bytes(*fixed, *model.buffers())
    needed /= world.shard_size
    available = memory_of(world.device)
    if available is not None and needed > available:
        named = [*model.named_parameters(), *model.named_buffers()]
        name, largest = max(named, key=lambda each: each[1].numel())
        count = sum(tensor.numel() for _, tensor in named)
        raise ValueError(
            f"the model has {count:,} weights, which need {gigabytes(needed)} with gradients "
            f"and optimizer; the {world.device.type} here has {gigabytes(available)}: lower the "
            f"sizes in model, of which {name} has the most, {' x '.join(map(str, largest.shape))}"
        )


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of memory of a device, or None where that can't be known."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def peak_memory(device: torch.device) -> int:
    """Return the most bytes in use so far: torch's on a GPU, else all of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest * (1 if sys.platform == "darwin" else 1024)


def gigabytes(number: float) -> str:
    """Write a number of bytes in gigabytes (1e9 bytes), with three digits."""
    amount = number / 1e9
    return f"{amount:,.0f} GB" if amount >= 1000 else f"{amount:.3g} GB"
