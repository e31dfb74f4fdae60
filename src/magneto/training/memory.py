"""How much memory there is, what training's state takes of it, and whether a model fits.

The one place for bytes of weights, gradients, optimizer and average: `--dry-run`, `magneto plan`
and the check before a model is built count alike.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from magneto.data.batch import map_tensors, named_tensors
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World
from magneto.training.meta_device import SkippedFills
from magneto.training.task import Task

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
