"""Hooks on layers and attention that measure a running model without changing it.

What is watched, per layer: the RMS and the largest magnitude of the activations, the gradient norm
of the weights, the ratio of the last update to the weights, and of attention the largest logit and
the entropy of its probabilities. Everything stays on the device until `read` is called.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from magneto.lab.probe.recorders import Held, record_layer
from magneto.nn.transformer import ProbedStack
from magneto.training.sharding import is_sharded

# Largest finite values of the formats a model may be run in. bf16 has the exponents of fp32.
LIMITS = {"fp16": torch.finfo(torch.float16).max, "bf16": torch.finfo(torch.bfloat16).max}


@dataclass(frozen=True)
class LayerReading:
    """What one layer did in one step; None where it was not measured.

    Attributes:
        name: Path of the layer in the model.
        activation_rms: Root mean square of the layer's output.
        activation_max: Largest magnitude in it, and in the outputs of the linear layers inside.
        gradient_norm: Norm of the gradient of the layer's parameters, as the optimizer gets it.
        update_ratio: Norm of the last update over the norm of the parameters before it.
        attention_logit_max: Largest attention logit that a mask lets through.
        attention_entropy: Mean entropy of attention, in nats, over rows that see more than one key.
        entropy_share: That entropy over its largest possible value, in the mean: 1 where
            attention is uniform, 0 where it looks at one key.
        distinct_rms: RMS of the output less its mean over the positions of the same sample, and of
            the same modality where a stack has several: what tells positions apart. Padding counts
            as positions, but where tokens are packed without.
    """

    name: str
    activation_rms: float | None = None
    activation_max: float | None = None
    gradient_norm: float | None = None
    update_ratio: float | None = None
    attention_logit_max: float | None = None
    attention_entropy: float | None = None
    entropy_share: float | None = None
    distinct_rms: float | None = None

    @property
    def token_similarity(self) -> float | None:
        """Share of the output's square that is the same at every position; 1 is rank collapse."""
        if self.activation_rms is None or self.distinct_rms is None or not self.activation_rms:
            return None
        return 1 - (self.distinct_rms / self.activation_rms) ** 2


class Probe:
    """Watches the layers of every stack in a model.

    Use `with probe.watch():` around forward and backward, `probe.mark()` before the optimizer's
    step to measure its update, and `probe.read()` after it. Under several ranks activations are
    this rank's, gradients and updates everyone's.
    """

    def __init__(self, model: nn.Module, attention_rows: int = 1) -> None:
        """Find the layers.

        Args:
            model: Any module that holds an `Encoder`, a `Decoder` or a `MultiwayEncoder`.
            attention_rows: Samples of the batch whose attention is computed again to be looked at;
                of images alone, pairs and texts alone, so many of each.

        Raises:
            ValueError: If there is no stack in the model.
        """
        self.attention_rows = attention_rows
        self.layers = {
            f"{path}.layers.{index}".lstrip("."): Held(layer, stack)
            for path, stack in find_stacks(model).items()
            for index, layer in enumerate(stack.layers)
        }

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Hook the layers; forward passes inside are recorded, the last one stays."""
        handles = self.hook()
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def hook(self) -> list[RemovableHandle]:
        """Hook the layers until the handles are removed."""
        layers = self.layers.values()
        return [handle for held in layers for handle in record_layer(held, self.attention_rows)]

    @torch.no_grad()
    def mark(self) -> None:
        """Remember the weights and read the gradients, just before the optimizer's step."""
        for held in self.layers.values():
            parameters = list(held.module.parameters())
            held.before = [p.detach().clone() for p in parameters]
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                held.keep("gradient_norm", held.module, total_norm(gradients))

    @torch.no_grad()
    def read(self) -> list[LayerReading]:
        """Return what was seen since the last call, layer by layer; this waits once."""
        seen: list[dict[str, Tensor]] = []
        for held in self.layers.values():
            if held.before:
                pairs = zip(held.module.parameters(), held.before, strict=True)
                moved = [after - before for after, before in pairs]
                ratio = total_norm(moved) / total_norm(held.before)
                held.keep("update_ratio", held.module, ratio)
            seen.append(held.take())
        tensors = [value for values in seen for value in values.values()]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])
        return [
            LayerReading(name, **{quantity: next(numbers) for quantity in values})
            for name, values in zip(self.layers, seen, strict=True)
        ]


def find_stacks(model: nn.Module) -> dict[str, ProbedStack]:
    """Return the stacks of a model by their paths, in its order.

    Raises:
        ValueError: If there is none.
    """
    found = {path: part for path, part in model.named_modules() if isinstance(part, ProbedStack)}
    if not found:
        raise ValueError(f"no encoder or decoder stack to probe in {type(model).__name__}")
    return found


def last_stack(model: nn.Module) -> ProbedStack:
    """Return a model's last stack, whose output is the model's; raises as `find_stacks` does."""
    return list(find_stacks(model).values())[-1]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of all tensors as one vector; of tensors in shares, that of the whole."""
    norm = torch.stack([tensor.float().norm() for tensor in tensors]).norm()
    return norm.full_tensor() if is_sharded(norm) else norm


@dataclass(frozen=True)
class Trouble:
    """The first layer that went wrong in one step, and how."""

    layer: str
    reason: str


def first_trouble(readings: Sequence[LayerReading], limit: str = "fp16") -> Trouble | None:
    """Find the first layer that is not finite, or past half of a format's range.

    Activations go wrong from the first layer up, gradients from the last one down, so that is the
    order in which they are looked at.

    Args:
        readings: In the model's order.
        limit: "fp16" or "bf16".
    """
    half = LIMITS[limit] / 2
    for reading in readings:
        if not _finite(reading.activation_max) or not _finite(reading.activation_rms):
            return Trouble(reading.name, "its activations are not finite")
        if reading.activation_max is not None and reading.activation_max > half:
            size = f"an activation of {reading.activation_max:.3g}"
            return Trouble(reading.name, f"{size} is past half of {limit}'s range ({half:.3g})")
    for reading in reversed(readings):
        if not _finite(reading.gradient_norm):
            return Trouble(reading.name, "its gradient is not finite")
    for reading in readings:
        if not _finite(reading.update_ratio):
            return Trouble(reading.name, "its weights are not finite after the step")
    return None


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
