"""The coordinate check of muP: how the change of activations in training depends on the width.

With muP, a training step changes the activations by the same amount at every width (Tensor Programs
V, arXiv 2203.03466, appendix D.1). With muP, one learning rate therefore suits every width. The
check trains a recipe for a few steps at several widths. The change of each layer's output is fitted
as a power of the width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.stream import to_device
from magneto.figures import as_svg, canvas
from magneto.lab.probe import find_stacks
from magneto.lab.short_run import at_peak_rate, first_piece, initial_model, short_run
from magneto.nn.transformer import ProbedStack
from magneto.progress import SILENT, Progress
from magneto.recipe import Recipe
from magneto.training.distributed import pick_device
from magneto.training.task import Task, place_companion

HEAD = "head"
# A change that grows faster than this power of the width needs a lower rate at a larger width.
FLAT = 0.2


@dataclass(frozen=True)
class Coordinate:
    """RMS of a layer's output at initialisation, and RMS of its change in training, by width.

    The change is nan if an output is not finite.
    """

    name: str
    initial: Mapping[int, float]
    change: Mapping[int, float]

    @property
    def exponent(self) -> float:
        """Exponent k of the fit `change ~ width ** k`; nan if a change is 0 or not finite."""
        sizes = np.array(list(self.change.values()), dtype=float)
        if not (np.isfinite(sizes).all() and (sizes > 0).all()):
            return math.nan
        return float(np.polyfit(np.log(list(self.change)), np.log(sizes), 1)[0])


def measure_coordinates(
    recipe: Recipe, widths: Sequence[int], steps: int, progress: Progress = SILENT
) -> list[Coordinate]:
    """Train a recipe at each width, and measure the layers' outputs before and after.

    Training takes `steps` steps at the recipe's peak rate. The model's other sizes scale with
    the width, except head width and depth.

    Raises:
        ValueError: If a width does not fit the model's other sizes.
    """
    recipes = [replace(recipe, model=recipe.model.at_width(width)) for width in widths]
    initial: dict[str, dict[int, float]] = {}
    change: dict[str, dict[int, float]] = {}
    for number, (width, sized) in enumerate(zip(widths, recipes, strict=True)):
        task = sized.build_task()
        task.prepare(progress)
        config = at_peak_rate(sized.training)
        device = pick_device(config.device)
        place_companion(task, device)
        model = initial_model(task, config, sized.seed)
        piece = to_device(first_piece(task, config, sized.seed), device)
        before = outputs(task, model, piece)
        short_run(task, model, config, seed=sized.seed, steps=steps, rates=())
        after = outputs(task, model, piece)
        for name, value in before.items():
            initial.setdefault(name, {})[width] = rms(value)
            change.setdefault(name, {})[width] = rms(after[name] - value)
        progress.update("widths", number + 1, len(widths))
    return [Coordinate(name, initial[name], change[name]) for name in initial]


def draw_coordinates(found: Sequence[Coordinate], steps: int) -> bytes:
    figure, axes = canvas(5.0, 3.2)
    for number, each in enumerate(found):
        depth = 0.3 + 0.7 * (number + 1) / len(found)
        colour = "#d1480b" if each.name == HEAD else (0.0, 0.4, 0.69, depth)
        widths, values = list(each.change), list(each.change.values())
        axes.plot(widths, values, marker="o", color=colour)
        axes.annotate(
            each.name, (widths[-1], values[-1]), (4, -2), textcoords="offset points", fontsize=6
        )
    axes.set(xscale="log", yscale="log", xlabel="width")
    axes.set_ylabel(f"RMS change after {steps} steps")
    return as_svg(figure).encode()


def rms(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


@torch.no_grad()
def outputs(task: Task, model: nn.Module, piece: Any) -> dict[str, Tensor]:
    """Return the outputs of layers, stacks and head for the batch `piece`, without dropout.

    If the loss does not call the head, the head is applied to the last stack's output.
    """
    found: dict[str, Tensor] = {}

    def keep(name: str, read: Callable[[Any], Tensor], *call: Any) -> None:
        found[name] = read(call[-1]).float()

    head, stacks = head_of(model), find_stacks(model)
    with ExitStack() as hooks:
        for name, stack in stacks.items():
            parts = {f"{name}.layers.{n}": layer for n, layer in enumerate(stack.layers)}
            for place, part in {**parts, name: stack}.items():
                hook = partial(keep, place, stack.tokens)
                hooks.enter_context(part.register_forward_hook(hook))
        if head is not None:
            hook = partial(keep, HEAD, lambda output: output)
            hooks.enter_context(head.register_forward_hook(hook))
        model.eval()
        task.loss(model, piece)
        model.train()
    top = found.get([*stacks][-1])
    if head is None or HEAD in found or top is None or top.shape[-1] != head.in_features:
        return found
    bias = None if head.bias is None else head.bias.float()
    return {**found, HEAD: F.linear(top, head.weight.float(), bias)}


def head_of(model: nn.Module) -> nn.Linear | None:
    """Return the last linear layer outside the encoder and decoder stacks, or None."""
    stacks: list[ProbedStack] = list(find_stacks(model).values())
    inside = {id(part) for stack in stacks for part in stack.modules()}
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and id(m) not in inside]
    return linear[-1] if linear else None
