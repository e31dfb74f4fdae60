"""How much memory there is, what training's state takes of it, and whether a model fits.

The one place for bytes of weights, gradients, optimizer and average: `--dry-run`, `magneto plan`
and the check before a model is built count alike.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from magneto.training.batch import named_tensors
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World
from magneto.training.task import Task
from magneto.training.throughput import loss_on_meta

# Examples of a batch from which on it is asked whether it fits; and that are looked at for it.
LARGE_BATCH = 2048
LOOKED_AT = 8
# Of what a forward pass in fp32 keeps: half in bf16, and less where compiled parts are computed
# anew.
LEAST_KEPT = 0.2

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


def check_memory(model: nn.Module, world: World) -> None:
    """See that a model's weights fit; those of a sharded model are shared among ranks.

    The optimizer's state and the activations come on top: a model that passes may still not fit.

    Args:
        model: On any device, "meta" too.
        world: The ranks.

    Raises:
        ValueError: If the device's memory is less than the weights need; says both.
    """
    needed = tensor_bytes(*model.parameters(), *model.buffers()) / world.shard_size
    there = memory_of(world.device)
    if there is not None and needed > there:
        count = sum(parameter.numel() for parameter in model.parameters())
        raise ValueError(
            f"the model has {count:,} parameters, whose weights alone need "
            f"{gigabytes(needed)}; the {world.device.type} here has {gigabytes(there)}: lower "
            "model.width, model.layers, model.ffn_width or the vocabulary"
        )


def check_batch(task: Task, config: TrainingConfig, seed: int, world: World) -> None:
    """See that one batch can fit, by what some of its examples take; a small batch is not asked.

    What is counted is the least: the examples themselves, and of what a forward pass keeps for the
    backward pass a share that no compilation goes below.

    Raises:
        ValueError: If the memory is less than that; says both.
    """
    if config.batch_size < LARGE_BATCH:
        return
    try:
        piece = task.train_stream(LOOKED_AT, seed).next(1, [0])[0]
    except ValueError:  # a batch of so few is none
        return
    share = config.batch_size / LOOKED_AT / world.world_size
    pieces = config.gradient_accumulation_steps
    held = share * sum(tensor.nbytes for tensor in named_tensors(piece).values())
    kept = share / pieces * LEAST_KEPT * kept_bytes(task, piece)
    for needed, device in ((held, torch.device("cpu")), (kept, world.device)):
        there = memory_of(device)
        if there is not None and needed > there:
            raise ValueError(
                f"training.batch_size {config.batch_size:,}: a batch needs {gigabytes(needed)} and "
                f"more, the {device.type} here has {gigabytes(there)}: lower it"
                + ("" if needed is held else ", or raise training.gradient_accumulation_steps")
            )


def kept_bytes(task: Task, batch: Any) -> int:
    """Return the bytes that a forward pass keeps for the backward pass besides weights.

    It is found on the meta device; 0 where the model or the loss looks at values.
    """
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = loss_on_meta(task, batch)  # its graph holds what is kept
        with torch.device("meta"):
            weights = sum(tensor.nbytes for tensor in task.build_model().parameters())
    except RuntimeError:
        return 0
    del loss
    return max(sum(kept.values()) - weights, 0)


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
