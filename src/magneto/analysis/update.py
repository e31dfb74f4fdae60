"""How far one optimizer step moves the model's output, measured, beside what the theory bounds.

Paper, section 3.3: F is the label's logit, the step is taken on it, and the theory bounds the
expected F(x, theta - eta dL/dtheta) - F(x, theta), divided by eta d, at initialisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

import torch
from torch import Tensor

from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Decoder, Encoder, LayerStack
from magneto.theory.depth import Stack

Optimizer = Literal["sgd", "adam"]

# Small enough that the change is linear in it, large enough for float64: see the tests.
STEP = 1e-6
# Two-sided 95 % points of Student's t for 1 to 10 degrees of freedom; 1.96 beyond.
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True)
class Update:
    """One measurement: the change of the label's logit under one step of size `STEP`, per eta d.

    Attributes:
        placement: Name of the row.
        layers: Depth of the stack.
        seed: Of the weights and the input.
        value: (F after - F before) / (eta * width).
    """

    placement: str
    layers: int
    seed: int
    value: float


@dataclass(frozen=True)
class Growth:
    """How measured updates grow with depth, value ~ layers ** exponent.

    Attributes:
        placement: Name of the row.
        exponent: Slope of log value against log layers, mean over seeds.
        interval: Half-width of its 95 % confidence interval over seeds (nan for one seed).
        ratio: Mean value at the deepest stack over mean value at the shallowest.
    """

    placement: str
    exponent: float
    interval: float
    ratio: float


def measure_update(
    config: TransformerConfig,
    *,
    stack: Stack = "decoder",
    optimizer: Optimizer = "sgd",
    length: int = 16,
    samples: int = 4,
    seed: int = 0,
) -> Update:
    """Measure the output's change under one small step on the weight matrices of a fresh stack.

    The input is standard normal and the label's output row N(0, 1/d), as the theory has them. Each
    sample is a step of its own from the same weights; their mean is reported.

    Args:
        config: Shape of the stack; its depth is `layers`.
        stack: Encoder or decoder.
        optimizer: "sgd", or the first step of "adam", which moves every weight by eta.
        length: Positions of the input; F is read at the last.
        samples: Inputs to average over.
        seed: Of weights, inputs and labels.

    Returns:
        The measured update, in float64.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (Encoder if stack == "encoder" else Decoder)(config).double().eval()
        changes = [_change(model, optimizer, length) for _ in range(samples)]
    return Update(config.row.name, config.layers, seed, fmean(changes) / (STEP * config.width))


def _change(model: LayerStack, optimizer: Optimizer, length: int) -> float:
    """Take one step up the label's logit, read the change, and step back."""
    width = model.config.width
    x = torch.randn(1, length, width, dtype=torch.float64)
    label = torch.randn(width, dtype=torch.float64) / math.sqrt(width)
    weights = [p for p in model.layers.parameters() if p.ndim >= 2]

    def logit() -> Tensor:
        return model(x)[0, -1] @ label

    before = logit()
    gradients = torch.autograd.grad(before, weights)
    if optimizer == "adam":
        gradients = tuple(gradient.sign() for gradient in gradients)
    with torch.no_grad():
        kept = [weight.clone() for weight in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.add_(gradient, alpha=STEP)
        change = (logit() - before).item()
        for weight, value in zip(weights, kept, strict=True):
            weight.copy_(value)
    return change


def measure_growth(
    config: TransformerConfig,
    *,
    placements: Sequence[str],
    depths: Sequence[int],
    seeds: Sequence[int] = (0, 1, 2),
    stack: Stack = "decoder",
    optimizer: Optimizer = "sgd",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Update]:
    """Measure every placement at every depth and seed.

    Args:
        config: Shape; its placement and depth are replaced.
        placements: Names of rows.
        depths: Numbers of layers.
        seeds: One measurement each.
        stack: Encoder or decoder.
        optimizer: "sgd" or "adam".
        progress: Called with the number done and the total.

    Returns:
        One `Update` per placement, depth and seed, in that order.
    """
    cells = [(p, depth, seed) for p in placements for depth in depths for seed in seeds]
    updates = []
    for placement, depth, seed in cells:
        cell = replace(config, placement=placement, layers=depth)
        updates.append(measure_update(cell, stack=stack, optimizer=optimizer, seed=seed))
        progress(len(updates), len(cells))
    return updates


def growth(updates: Sequence[Update]) -> list[Growth]:
    """Fit each placement's growth with depth; needs at least two depths.

    Raises:
        ValueError: If a placement was measured at one depth only.
    """
    return [_fit([u for u in updates if u.placement == name]) for name in _names(updates)]


def _names(updates: Sequence[Update]) -> list[str]:
    return list(dict.fromkeys(update.placement for update in updates))


def _fit(updates: list[Update]) -> Growth:
    depths = sorted({update.layers for update in updates})
    if len(depths) < 2:
        raise ValueError(f"growth needs at least two depths; {updates[0].placement} has {depths}")
    seeds = sorted({update.seed for update in updates})
    slopes = [slope([u for u in updates if u.seed == seed]) for seed in seeds]
    at = {d: fmean(u.value for u in updates if u.layers == d) for d in (depths[0], depths[-1])}
    return Growth(
        updates[0].placement, fmean(slopes), half_width(slopes), at[depths[-1]] / at[depths[0]]
    )


def slope(updates: Sequence[Update]) -> float:
    """Least-squares slope of log |value| against log layers."""
    x = [math.log(update.layers) for update in updates]
    y = [math.log(abs(update.value)) for update in updates]
    centre = fmean(x)
    spread = sum((a - centre) ** 2 for a in x)
    return sum((a - centre) * b for a, b in zip(x, y, strict=True)) / spread


def half_width(values: Sequence[float]) -> float:
    """Half-width of the 95 % confidence interval of a mean (Student's t); nan for one value."""
    if len(values) < 2:
        return math.nan
    freedom = len(values) - 1
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else 1.96
    return quantile * stdev(values) / math.sqrt(len(values))
