"""Whether a model fits in the memory there is, known before anything is allocated."""

from __future__ import annotations

import os

import torch
from torch import nn

from magneto.training.distributed import World


def check_memory(model: nn.Module, world: World) -> None:
    """See that a model's weights fit; those of "fsdp" are shared among the ranks.

    The optimizer's state and the activations come on top: a model that passes may still not fit.

    Args:
        model: On any device, "meta" too.
        world: The ranks.

    Raises:
        ValueError: If the device's memory is less than the weights need; says both.
    """
    tensors = [*model.parameters(), *model.buffers()]
    shares = world.world_size if world.strategy == "fsdp" else 1
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / shares
    there = memory_of(world.device)
    if there is not None and needed > there:
        count = sum(parameter.numel() for parameter in model.parameters())
        raise ValueError(
            f"the model has {count:,} parameters, whose weights alone need "
            f"{gigabytes(needed)}; the {world.device.type} here has {gigabytes(there)}: lower "
            "model.width, model.layers, model.ffn_width or the vocabulary"
        )


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of memory of a device, or None where that can't be known."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def gigabytes(number: float) -> str:
    """Write a number of bytes in gigabytes."""
    return f"{number / 1e9:,.1f} GB"
