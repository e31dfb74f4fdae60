"""What every conversion of other people's weights uses: names, fused matrices, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def activation(name: str) -> Any:
    """Return our name of an activation.

    Raises:
        ValueError: If we have none.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"no activation {name!r} here: there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def require(config: Any, **wanted: Any) -> None:
    """Raise ValueError if an option of a transformers configuration is not as we have it."""
    for name, value in wanted.items():
        found = getattr(config, name, value)
        if found != value:
            raise ValueError(f"{config.model_type} with {name}={found!r} has no counterpart here "
                             f"(only {value!r})")  # fmt: skip


def without_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the state of a model with or without a head on it, under the same names."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def renamed(state: Mapping[str, Tensor], names: Mapping[str, str]) -> State:
    """Return weight and bias of each named module, under its new name."""
    return {
        f"{new}.{kind}": state[f"{old}.{kind}"]
        for old, new in names.items()
        for kind in ("weight", "bias")
        if f"{old}.{kind}" in state
    }


def fused(state: Mapping[str, Tensor], parts: list[str], name: str) -> State:
    """Return query, key and value as one projection."""
    return {
        f"{name}.{kind}": torch.cat([state[f"{part}.{kind}"] for part in parts])
        for kind in ("weight", "bias")
        if f"{parts[0]}.{kind}" in state
    }
