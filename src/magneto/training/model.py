"""Initial weights of a task's model, and memory and floating-point operations of its training.

The initial weights are bit-identical for any number of processes. The model is built on the meta
device, sharded, and initialised module by module. With module-by-module initialisation, no process
needs memory for the whole model. A module's random numbers depend on the seed and the module's name
alone.

Module-by-module initialisation works if `reset_parameters` alone fills a module's tensors, as in
torch and Magneto. Module-by-module initialisation fails for modules that set values in a child,
load weights, or have parameters without `reset_parameters`. If a model has such a module, every
process builds the whole model, and then keeps only its own rows of each tensor.
"""

from __future__ import annotations

import hashlib
import math
import os
import resource
import sys
from collections.abc import Callable, Iterator
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
    local_parts,
    piece_of,
    replicate_model,
    shard_model,
    unwrap,
)
from magneto.training.optimizer import OPTIMIZER_TENSORS
from magneto.training.task import Task, count_units

# Operations that fill tensors of a new model and change nothing else.
FILLS = {
    torch.ops.aten.normal_.default,
    torch.ops.aten.uniform_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.zero_.default,
}


class FillRecorder(TorchDispatchMode):
    """Dispatch mode of torch that records all writes to tensors.

    Fills of tensors on the meta device are recorded but not executed, since executing them would
    take time without any effect.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[int, list[Any]] = {}
        self._kept: list[Tensor] = []  # prevents reuse of addresses

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info and argument.alias_info.is_write and isinstance(value, Tensor):
                # Values copied from another tensor are unknown, so equal to nothing.
                rest = [object() if isinstance(x, Tensor) else x for x in args if x is not value]
                place = (value.storage_offset(), tuple(value.shape), value.stride())
                self.writes.setdefault(storage_of(value), []).append((func, place, rest))
                self._kept.append(value)
        if func in FILLS and isinstance(args[0], Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def initial_model(
    task: Task, seed: int, world: World, say: Callable[[str], None] = lambda line: None
) -> nn.Module:
    """Build a task's model with the initial weights, distributed over the ranks.

    Args:
        task: Task whose `prepare` has been called.
        seed: Seed of the weights.
        world: Ranks of the run. Every rank must call this function.
        say: Called with a message if each rank must build the whole model.
    """
    model, reason = build_on_meta(task.build_model)
    if model is not None:
        shard_model(model, world)
        materialize(model, world.device)
        draw_parameters(model, seed)
    else:
        if world.is_sharded:
            say(f"each rank builds the whole model before sharding: {reason}")
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
    config: TrainingConfig,
    world: World,
) -> None:
    """Call `Task.begin_training`, which may initialise weights from data.

    Every rank must call this function.
    """
    wanted, parts = local_parts(config, world)

    def batches() -> Iterator[list[Any]]:
        for pieces in stream.batches(parts, wanted):
            yield [to_device(piece, world.device) for piece in pieces]

    task.begin_training(unwrap(model), batches(), partial(gather_rows, world=world))


def build_on_meta(build: Callable[[], nn.Module]) -> tuple[nn.Module | None, str]:
    try:
        with torch.device("meta"), FillRecorder() as building:
            model = build()
        reason = whole_model_reason(model, building)
    except RuntimeError as error:  # it reads a value, which a meta tensor does not have
        return None, str(error).splitlines()[0]
    return (None, reason) if reason else (model, "")


def whole_model_reason(model: nn.Module, building: FillRecorder) -> str:
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
                place = f"{name}.{key}".lstrip(".")
                return f"reset_parameters does not reproduce the initial values of {place}"
        seen |= held
    return ""


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict((*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)))


def all_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def materialize(model: nn.Module, device: torch.device) -> None:
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
    """Initialise tensors module by module on the CPU, and copy this rank's rows to the device."""
    initialised: set[int] = set()
    with torch.random.fork_rng(devices=[]):
        for name, module in model.named_modules():
            own = own_tensors(module)
            fresh = {key: tensor for key, tensor in own.items() if id(tensor) not in initialised}
            if fresh:
                torch.default_generator.manual_seed(module_seed(seed, name))
                draw_module(module, own, fresh)
                initialised |= {id(tensor) for tensor in fresh.values()}


def draw_module(module: nn.Module, own: dict[str, Tensor], fresh: dict[str, Tensor]) -> None:
    full = {key: torch.empty(t.shape, dtype=t.dtype) for key, t in own.items()}
    try:
        for key, value in full.items():
            parameter = isinstance(own[key], nn.Parameter)
            setattr(module, key, nn.Parameter(value, requires_grad=False) if parameter else value)
        if (reset := getattr(module, "reset_parameters", None)) is not None:
            reset()
    finally:
        for key, tensor in own.items():
            setattr(module, key, tensor)
    for key, tensor in fresh.items():
        piece = piece_of(tensor)
        piece.tensor.copy_(full[key][piece.start : piece.stop] if piece.shape else full[key])


def module_seed(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def ctc_loss(
    log_probabilities: Tensor, targets: Tensor, lengths: list[int], labels: list[int], *_: Any
) -> tuple[Tensor, Tensor]:
    """Return two empty tensors with the output shapes of `aten::_ctc_loss`."""
    frames, rows = log_probabilities.shape[:2]
    new = log_probabilities.new_empty
    return new(rows), new(rows, frames, 2 * max(labels) + 1)


# Operations whose output shapes torch does not know on the meta device.
META_SHAPES: dict[Any, Any] = {torch.ops.aten._ctc_loss.default: ctc_loss}


def attention_flops(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def attention_gradient_flops(gradient: Tensor, *given: Tensor, **_: Any) -> int:
    return 2 * attention_flops(*given)


# Formulas by operation: torch's, and those of attention on a CPU, which torch does not count.
FLOP_FORMULAS: dict[Any, Any] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_gradient_flops,
}


class CountedOperations(TorchDispatchMode):
    """Mode that counts floating-point operations of matrix products with torch's formulas."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = META_SHAPES.get(func, func)(*args, **kwargs)
        if (flops := FLOP_FORMULAS.get(func._overloadpacket)) is not None:
            self.total += flops(*args, **kwargs, out_val=result)
        return result


def count_flops(task: Task, batch: Any, precision: str = "fp32") -> tuple[float, int]:
    """Count the floating-point operations of one forward and backward pass.

    The pass runs on torch's fake tensors, which have shapes without values, so nothing is computed
    or allocated. With activation checkpointing, the recomputed operations are counted too.

    Args:
        task: Task whose `prepare` has been called. A frozen model (`Task.companion`) must be on the
            CPU.
        batch: Batch on the CPU.
        precision: Precision of training: "bf16" or "fp32".

    Returns:
        Number of operations, and number of units in the batch, such as tokens (`Task.unit`). If
        the model or the loss reads values of tensors, the result is (nan, 1).
    """
    task.companion()  # created outside the fake mode, with values
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


# Examples from which the size of a batch is estimated.
SAMPLE_SIZE = 12


@dataclass(frozen=True)
class StateBytes:
    """Bytes of a model's training state before sharding, without activations and batch.

    Attributes:
        weights: Bytes of the trained parameters.
        gradients: Bytes of the gradients.
        optimizer: Bytes of AdamW's two moments, or 0 for SGD.
        average: Bytes of the averaged weights (`training.ema_decay`).
    """

    weights: int
    gradients: int
    optimizer: int
    average: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.average


def state_bytes(model: nn.Module, config: TrainingConfig) -> StateBytes:
    """Return the sizes of a model's training state. The model may be on the meta device."""
    trained = tensor_bytes(*(p for p in model.parameters() if p.requires_grad))
    return StateBytes(
        weights=trained,
        gradients=trained,
        optimizer=OPTIMIZER_TENSORS[config.optimizer] * trained,
        average=trained if config.ema_decay else 0,
    )


def tensor_bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_memory(task: Task, config: TrainingConfig, world: World, seed: int) -> None:
    """Check that training can fit in memory. The check uses only shapes and a few examples.

    Weights, gradients and optimizer state must fit in the device's memory. The examples of a batch
    must fit in the CPU's memory. Activations need additional memory, which is not counted. If
    building the model reads values of tensors, nothing is checked.

    Raises:
        ValueError: If the memory is too small. The message says which setting to lower.
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
    except ValueError:  # the task refuses so small a batch
        return
    share = config.batch_size / few / world.world_size
    needed = share * sum(tensor.nbytes for tensor in named_tensors(piece).values())
    available = memory_of(torch.device("cpu"))
    if available is not None and needed > available:
        fitting = int(config.batch_size * available / needed)
        raise ValueError(
            f"training.batch_size {config.batch_size:,}: a batch needs at least "
            f"{gigabytes(needed)}, and this machine has {gigabytes(available)}, enough for "
            f"{fitting:,} examples. Lower the batch size or the size of an example."
        )


def check_model_memory(model: nn.Module, config: TrainingConfig, world: World) -> None:
    """Check that weights, gradients and optimizer state fit in memory; see `check_memory`."""
    fixed = [p for p in model.parameters() if not p.requires_grad]
    needed = state_bytes(model, config).total + tensor_bytes(*fixed, *model.buffers())
    needed /= world.shard_size
    available = memory_of(world.device)
    if available is not None and needed > available:
        named = [*model.named_parameters(), *model.named_buffers()]
        name, largest = max(named, key=lambda each: each[1].numel())
        count = sum(tensor.numel() for _, tensor in named)
        raise ValueError(
            f"the model has {count:,} weights. With gradients and optimizer, they need "
            f"{gigabytes(needed)}; the device ({world.device.type}) has {gigabytes(available)}. "
            "Lower the sizes in the section `model` of the recipe: the largest tensor is "
            f"{name}, {' x '.join(map(str, largest.shape))}"
        )


def memory_of(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: torch's on a GPU, this process's on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest * (1 if sys.platform == "darwin" else 1024)


def gigabytes(number: float) -> str:
    """Return a number of bytes as text in gigabytes (1e9 bytes), with three digits."""
    amount = number / 1e9
    return f"{amount:,.0f} GB" if amount >= 1000 else f"{amount:.3g} GB"
