"""Maximal update parametrisation: how initial values and learning rates change with width.

Tensor Programs V (arXiv 2203.03466), table 8 for Adam, in the form that needs no multipliers in the
forward pass. The same model at `base_width` says which sizes grow with the width: m is how many
times as wide as there this model is.

| weight                        | reads | gives | standard deviation      | rate    |
|-------------------------------|-------|-------|-------------------------|---------|
| matrices inside the stack     | width | width | the base's / sqrt(m)    | 1 / m   |
| heads                         | width | fixed | the base's / m          | 1 / m   |
| embeddings, patches           | fixed | width | the base's              | 1       |
| norms, biases, scales         |       |       | as they are             | 1       |

At the base width it is the standard parametrisation. Heads keep their width, so that the scale of
attention's logits needs no change. Weights whose rate is multiplied decay as much as others: the
decay is divided by the same number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from magneto.nn.embedding import PatchProjection, TextEmbedding
from magneto.nn.init import CUT_STD, NORMAL_STD, Projection, xavier_std


@dataclass(frozen=True)
class Scale:
    """What a weight's drawn values and its learning rate are multiplied by."""

    initial: float = 1.0
    rate: float = 1.0


def width_scales(model: nn.Module) -> Mapping[str, Scale]:
    """Return the scale of each parameter, by each of its names, of a model by its `config`.

    Empty for the standard parametrisation, which scales nothing.

    Raises:
        ValueError: If a weight with two names would have two scales.
    """
    config = getattr(model, "config", None)
    if getattr(config, "parametrization", "standard") == "standard":
        return {}
    with torch.device("meta"):
        base = type(model)(config.at_base_width())  # type: ignore[union-attr]
    scales: dict[str, Scale] = {}
    for (name, module), smaller in zip(model.named_modules(), base.modules(), strict=True):
        for key, tensor in module.named_parameters(recurse=False):
            ours, theirs = tuple(tensor.shape), tuple(getattr(smaller, key).shape)
            scales[f"{name}.{key}".lstrip(".")] = scale_of(module, smaller, key, ours, theirs)
    for name, module in model.named_modules():
        if isinstance(module, TextEmbedding):
            there: Any = base.get_submodule(name)
            # The table is multiplied in the forward pass, by a number that grows with the width.
            grown = module.scale / there.scale
            drawn = scales[f"{name}.table.weight"].initial
            scales[f"{name}.table.weight"] = Scale(drawn / grown, 1 / grown)
    refuse_tied(model, scales)
    return scales


def refuse_tied(model: nn.Module, scales: Mapping[str, Scale]) -> None:
    """See that a weight with several names has one scale.

    Raises:
        ValueError: If it has two, as an output matrix has that is the embedding.
    """
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in scales:  # of a module that is there twice
            continue
        first = names.setdefault(parameter, name)
        if scales[first] != scales[name]:
            raise ValueError(f"model.parametrization mup: {first} and {name} are one weight, which "
                             "it scales differently; use weights of their own, or "
                             "standard")  # fmt: skip


def scale_of(
    module: nn.Module, base: nn.Module, key: str, shape: tuple[int, ...], smaller: tuple[int, ...]
) -> Scale:
    """Return the scale of a module's parameter, of one shape here and of another at base width."""
    drawn, drawn_there = (initial_std(each, key) for each in (module, base))
    kept = drawn_there / drawn if drawn else 1.0
    # A table is looked up: its rows are what it gives, whichever way round they lie.
    if len(shape) < 2 or isinstance(module, nn.Embedding) or shape[1] == smaller[1]:
        return Scale(kept)
    times = shape[1] / smaller[1]
    grows = shape[0] != smaller[0]
    return Scale(kept / (math.sqrt(times) if grows else times), 1 / times)


def initial_std(module: nn.Module, key: str) -> float:
    """Return the standard deviation that a module draws a parameter with; 0 for constants.

    A module may say that of its weight: its `std`.
    Of a fused weight, of its first slice: all change with the width alike.
    """
    if isinstance(said := getattr(module, "std", None), float):
        return said if key == "weight" else 0.0
    if isinstance(module, Projection):
        if key != "weight":
            return 0.0
        if module.base in ("xavier_normal", "xavier_uniform"):
            return xavier_std(module.in_features, module.slices[0][1], module.gain)
        return module.gain * NORMAL_STD / (1.0 if module.base == "normal" else CUT_STD)
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d):
        weight = module.weight
        inputs = weight[0].numel()
        if isinstance(module, PatchProjection):
            return xavier_std(inputs, len(weight)) if key == "weight" else 0.0
        return (3 * inputs) ** -0.5  # torch's own, of weight and bias
    return 0.0


@torch.no_grad()
def scale_initial_values(model: nn.Module, scales: Mapping[str, Scale]) -> None:
    """Multiply a model's drawn weights by their scales, in place; on each rank its own rows."""
    for name, parameter in model.named_parameters():
        if scales.get(name, Scale()).initial != 1.0:
            parameter.mul_(scales[name].initial)
