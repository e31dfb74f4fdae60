"""What a training takes: operations and throughput, memory, and whether a model fits.

The one place for bytes of weights, gradients, optimizer and average: `--dry-run`, `magneto plan`
and the check before a model is built count alike.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from magneto.data.stream import map_tensors, named_tensors
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World
from magneto.training.initial import SkippedFills
from magneto.training.peaks import nominal_peaks
from magneto.training.task import Task, units_of

# Rows of the matrices by which a device's peak is first timed, and the seconds that are enough.
SMALLEST = 256
LONG_ENOUGH = 0.02


def ctc_loss(
    log_probabilities: Tensor, targets: Tensor, lengths: list[int], labels: list[int], *_: Any
) -> tuple[Tensor, Tensor]:
    """Return what `aten::_ctc_loss` gives: a loss for each row, and its lattice of both."""
    frames, rows = log_probabilities.shape[:2]
    new = log_probabilities.new_empty
    return new(rows), new(rows, frames, 2 * max(labels) + 1)


# Operations of which torch knows no shapes without values.
SHAPES: dict[Any, Any] = {torch.ops.aten._ctc_loss.default: ctc_loss}


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
    """Adds up the floating-point operations of products, by torch's formulas for their shapes.

    Attributes:
        total: The number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, or return what has the shapes of its results; count it."""
        kwargs = kwargs or {}
        result = SHAPES.get(func, func)(*args, **kwargs)
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
    return counted.total, max(units_of(loss, batch), 1)


def peak_flops(device: torch.device, precision: str) -> float:
    """Return the device's peak in FLOP/s: from the table, or from a matrix product timed here."""
    if device.type == "cuda":
        peaks = nominal_peaks(torch.cuda.get_device_name(device))
        if peaks is not None:
            return peaks[0 if precision == "bf16" else 1]
    return measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def measured_peak(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Time square matrix products; return the best rate in FLOP/s.

    Args:
        device: Where.
        dtype: Of the factors, which are random: a GPU multiplies zeros and ones faster.
        size: Rows; by default as many as take a while, up to 1024 on a CPU, and 8192 elsewhere,
            where less would time the launch. A processor that has no bfloat16 is done with 256.
    """
    there = device.type != "cpu"
    largest, products = size or (8192 if there else 1024), 10 if there else 1
    size = size or SMALLEST
    seconds = product_seconds(device, dtype, size, products)
    while size < largest and seconds < LONG_ENOUGH:
        size *= 2
        seconds = product_seconds(device, dtype, size, products)
    return 2 * size**3 * products / seconds


def product_seconds(device: torch.device, dtype: torch.dtype, size: int, products: int) -> float:
    """Return how long some products of random matrices take, the least of five times."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, product = float("inf"), left
    for _ in range(5):  # the first of which warms up
        start = time.perf_counter()
        for _ in range(products):
            product = left @ right
        product[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return best


class Throughput:
    """Counts units between two readings, and the seconds that training itself took."""

    def __init__(self, flops_per_unit: float, peak: float) -> None:
        self.flops_per_unit = flops_per_unit
        self.peak = peak
        self.units = 0
        self.start = time.perf_counter()
        self.paused = 0.0

    def add(self, units: int) -> None:
        """Count units of this rank."""
        self.units += units

    def pause(self, seconds: float) -> None:
        """Leave out seconds spent on evaluation or saving."""
        self.paused += seconds

    def read(self, world_size: int) -> tuple[float, float]:
        """Return (units per second over all ranks, model-FLOPs utilisation), and start again."""
        now = time.perf_counter()
        seconds = max(now - self.start - self.paused, 1e-9)
        rate = self.units / seconds
        self.units, self.start, self.paused = 0, now, 0.0
        return rate * world_size, rate * self.flops_per_unit / self.peak


# Examples that are looked at to tell how much a batch needs.
LOOKED_AT = 12

# Numbers that an optimizer keeps for each trained weight, in the weight's own type.
KEPT_BY_OPTIMIZER = {"adamw": 2, "sgd": 0}


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
    """Return what training a model holds because of the weights that are trained.

    Args:
        model: On any device, "meta" too.
        config: Says the optimizer and whether an average is kept.
    """
    trained = tensor_bytes(*(p for p in model.parameters() if p.requires_grad))
    return StateBytes(
        weights=trained,
        gradients=trained,
        optimizer=KEPT_BY_OPTIMIZER[config.optimizer] * trained,
        average=trained if config.ema_decay else 0,
    )


def tensor_bytes(*tensors: Tensor) -> int:
    """Return the bytes of tensors; a tied one is to be given once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_memory(task: Task, config: TrainingConfig, world: World, seed: int) -> None:
    """See that a training can fit, by the shapes of a model and of a few examples.

    What is counted is the least: weights, gradients and the optimizer's state; the examples of a
    batch; and what each layer is given, which its backward pass needs. What passes may still not
    fit. A model that can't be built without values is not asked.

    Args:
        task: Prepared.
        config: Of the training.
        world: The ranks, which share the batch, and the weights where they are sharded.
        seed: Of the data's order.

    Raises:
        ValueError: If the memory is less than that; says both, and what to lower.
    """
    try:
        with torch.device("meta"), SkippedFills():
            model = task.build_model()
    except RuntimeError:  # it reads a value
        return
    check_weights(model, config, world)
    few = min(config.batch_size, LOOKED_AT)
    try:
        (piece,) = task.train_stream(few, seed).batch(0)
    except ValueError:  # a batch of so few is none
        return
    share = config.batch_size / few / world.world_size
    held = share * sum(tensor.nbytes for tensor in named_tensors(piece).values())
    passed = share / config.gradient_accumulation_steps * bytes_between_layers(task, model, piece)
    for needed, device in ((held, torch.device("cpu")), (passed, world.device)):
        there = memory_of(device)
        if there is not None and needed > there:
            fitting = int(config.batch_size * there / needed)
            raise ValueError(
                f"training.batch_size {config.batch_size:,}: a batch needs {gigabytes(needed)} and "
                f"more, the {device.type} here has {gigabytes(there)}, which {fitting:,} examples "
                "fill: lower it or the size of an example"
                + ("" if needed is held else ", or raise training.gradient_accumulation_steps")
            )


def check_weights(model: nn.Module, config: TrainingConfig, world: World) -> None:
    """See that what a model's weights take in training fits; see `check_memory`."""
    fixed = [p for p in model.parameters() if not p.requires_grad]
    needed = state_bytes(model, config).total + tensor_bytes(*fixed, *model.buffers())
    needed /= world.shard_size
    there = memory_of(world.device)
    if there is not None and needed > there:
        named = [*model.named_parameters(), *model.named_buffers()]
        name, largest = max(named, key=lambda each: each[1].numel())
        count = sum(tensor.numel() for _, tensor in named)
        raise ValueError(
            f"the model has {count:,} weights, which need {gigabytes(needed)} with gradients "
            f"and optimizer; the {world.device.type} here has {gigabytes(there)}: lower the sizes "
            f"in model, of which {name} has the most, {' x '.join(map(str, largest.shape))}"
        )


def bytes_between_layers(task: Task, model: nn.Module, piece: Any) -> int:
    """Return the bytes, in bf16, that the first stack's layers are given for some examples.

    The model is run on the meta device up to its first layer; 0 where it has none, or where
    something before it looks at values.
    """
    stacks = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
    given: list[int] = []

    def stop(module: nn.Module, inputs: Any) -> None:
        read = named_tensors(inputs[0]).values() if inputs else ()
        given.append(len(stacks_of[module]) * 2 * sum(tensor.numel() for tensor in read))
        raise ReachedError

    stacks_of = {stack[0]: stack for stack in stacks}
    handles = [layer.register_forward_pre_hook(stop) for layer in stacks_of]
    try:
        with shapes_alone(task.companion() or nn.Identity()):
            task.loss(model, map_tensors(piece, lambda tensor: tensor.to("meta")))
    except (ReachedError, RuntimeError, AssertionError):
        pass
    finally:
        for handle in handles:
            handle.remove()
    return sum(given)


@contextmanager
def shapes_alone(module: nn.Module) -> Iterator[None]:
    """Let a module's tensors have no values for a while, so that it takes tensors without any."""
    held: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (tensors, dict(tensors))
        for part in module.modules()
        for tensors in (part._parameters, part._buffers)
    ]
    for tensors, values in held:
        tensors.update({n: t if t is None else t.to("meta") for n, t in values.items()})
    try:
        yield
    finally:
        for tensors, values in held:
            tensors.update(values)


class ReachedError(Exception):
    """A model was run as far as it is looked at."""


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of memory of a device, or None where that can't be known."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return physical_memory("SC_PHYS_PAGES")


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a device, or None where that can't be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    # macOS tells only what there is in all.
    known = "SC_AVPHYS_PAGES" in os.sysconf_names
    return physical_memory("SC_AVPHYS_PAGES" if known else "SC_PHYS_PAGES")


def physical_memory(pages: str) -> int | None:
    """Return the bytes of pages of this machine, by the name of a system value."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
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
