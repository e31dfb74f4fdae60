"""Maximal update parametrisation (muP): initial weights and learning rates as functions of width.

The factors come from Tensor Programs V (arXiv 2203.03466), table 3, for Adam. Of the paper's
equivalent forms, Magneto uses the one whose forward pass has no multipliers. Magneto builds the
same model at `base_width` to find the dimensions that grow with the width. In the following table,
m is the width divided by `base_width`.

| weight                    | inputs | outputs | standard deviation     | learning rate   |
|---------------------------|--------|---------|------------------------|-----------------|
| matrices inside the stack | width  | width   | base value / sqrt(m)   | base value / m  |
| heads                     | width  | fixed   | base value / m         | base value / m  |
| embeddings, patches       | fixed  | width   | base value             | base value      |
| norms, biases, scales     |        |         | unchanged              | base value      |

If the model multiplies embeddings by sqrt(width), their standard deviation and learning rate are
the base values / sqrt(m). At the base width, maximal update equals the standard parametrisation.
Since the head width is constant, attention's logits keep the scale 1 / sqrt(head width). Weight
decay is divided by the factor that multiplies the learning rate. All weights therefore decay at the
same rate.
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
from magneto.nn.position import TransformerXLLogits


@dataclass(frozen=True)
class Scale:
    """Factors by which muP multiplies a weight's initial values and learning rate."""

    initial: float = 1.0
    rate: float = 1.0


def width_scales(model: nn.Module) -> Mapping[str, Scale]:
    """Return muP's factors for each parameter, by name. A tied parameter has several names.

    With the standard parametrisation, the result is {}.

    Raises:
        ValueError: If a tied weight would have two different factors.
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
            other: Any = base.get_submodule(name)
            # The forward pass multiplies the table by a number that grows with the width.
            grown = module.scale / other.scale
            initial = scales[f"{name}.table.weight"].initial
            scales[f"{name}.table.weight"] = Scale(initial / grown, 1 / grown)
    check_tied(model, scales)
    return scales


def check_tied(model: nn.Module, scales: Mapping[str, Scale]) -> None:
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in scales:  # the module occurs twice
            continue
        first = names.setdefault(parameter, name)
        if scales[first] != scales[name]:
            raise ValueError(f"{first} and {name} are tied, but model.parametrization 'mup' needs "
                             "different scales for them. Untie them, or set "
                             "model.parametrization to 'standard'.")  # fmt: skip


def scale_of(
    module: nn.Module, base: nn.Module, key: str, shape: tuple[int, ...], smaller: tuple[int, ...]
) -> Scale:
    std, base_std = (initial_std(each, key) for each in (module, base))
    ratio = base_std / std if std else 1.0
    # The rows of an embedding are outputs. Transformer-XL's biases are vectors, one per head.
    vectors = isinstance(module, nn.Embedding | TransformerXLLogits)
    if len(shape) < 2 or vectors or shape[1] == smaller[1]:
        return Scale(ratio)
    times = shape[1] / smaller[1]
    grows = shape[0] != smaller[0]
    return Scale(ratio / (math.sqrt(times) if grows else times), 1 / times)


def initial_std(module: nn.Module, key: str) -> float:
    """Return the standard deviation of a parameter's initial values, or 0 for constants."""
    if isinstance(std := getattr(module, "std", None), float):
        return std if key == "weight" else 0.0
    if isinstance(module, Projection):
        if key != "weight":
            return 0.0
        if module.base in ("xavier_normal", "xavier_uniform"):
            # The first slice is enough, since all slices change equally with the width.
            return xavier_std(module.in_features, module.slices[0][1], module.gain)
        return module.gain * NORMAL_STD / (1.0 if module.base == "normal" else CUT_STD)
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d):
        weight = module.weight
        inputs = weight[0].numel()
        if isinstance(module, PatchProjection):
            return xavier_std(inputs, len(weight)) if key == "weight" else 0.0
        return (3 * inputs) ** -0.5  # torch's initialisation of weight and bias
    if isinstance(module, TransformerXLLogits):
        return xavier_std(*module.content_bias.shape)
    return 0.0


@torch.no_grad()
def scale_initial_values(model: nn.Module, scales: Mapping[str, Scale]) -> None:
    """Multiply a model's initial weights by their factors, in place.

    In a sharded model, each rank multiplies only its own rows.
    """
    for name, parameter in model.named_parameters():
        if scales.get(name, Scale()).initial != 1.0:
            parameter.mul_(scales[name].initial)
