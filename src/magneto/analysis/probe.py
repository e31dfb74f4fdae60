"""Look inside a model while it runs, without touching it: hooks on layers and attention.

What is watched, per layer: the RMS and the largest magnitude of the activations, the gradient norm
of the weights, the ratio of the last update to the weights, and of attention the largest logit and
the entropy of its probabilities. Everything stays on the device until `read` is called.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from magneto.nn.attention import DotProductAttention, join
from magneto.nn.mask import Mask
from magneto.nn.transformer import LayerStack

# Largest finite values; bf16 has fp32's range, so half of it is never the first to go.
LIMITS = {"fp16": 65504.0, "bf16": 3.3895e38}


@dataclass
class LayerReading:
    """What one layer did in one step. Values are nan where they were not measured.

    Attributes:
        name: Path of the layer in the model.
        activation_rms: Root mean square of the layer's output.
        activation_max: Largest magnitude in it.
        gradient_norm: Norm of the gradient of the layer's parameters.
        update_ratio: Norm of the last update over the norm of the parameters.
        attention_logit_max: Largest attention logit that a mask lets through.
        attention_entropy: Mean entropy of attention, in nats, over rows that see more than one key.
    """

    name: str
    activation_rms: float = math.nan
    activation_max: float = math.nan
    gradient_norm: float = math.nan
    update_ratio: float = math.nan
    attention_logit_max: float = math.nan
    attention_entropy: float = math.nan


@dataclass
class _Held:
    """Tensors of one layer that wait for `read`."""

    module: nn.Module
    values: dict[str, Tensor] = field(default_factory=dict)
    before: list[Tensor] = field(default_factory=list)


class Probe:
    """Watches the layers of every stack in a model.

    Use `with probe.watch():` around forward and backward, `probe.mark()` before the optimizer's
    step to measure its update, and `probe.read()` after it.
    """

    def __init__(self, model: nn.Module, attention_rows: int = 1) -> None:
        """Find the layers.

        Args:
            model: Any module that holds an `Encoder` or a `Decoder`.
            attention_rows: Samples of the batch whose attention is computed again to be looked at.

        Raises:
            ValueError: If there is no stack in the model.
        """
        self.attention_rows = attention_rows
        self.layers = {name: _Held(layer) for name, layer in stack_layers(model)}
        if not self.layers:
            raise ValueError(f"no encoder or decoder stack to probe in {type(model).__name__}")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Hook the layers; forward passes inside are recorded, the last one stays."""
        handles = []
        for held in self.layers.values():
            handles.append(held.module.register_forward_hook(_record_activation(held)))
            attention = next(m for m in held.module.modules() if isinstance(m, DotProductAttention))
            hook = _record_attention(held, self.attention_rows)
            handles.append(attention.register_forward_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def mark(self) -> None:
        """Remember the weights and read the gradients, just before the optimizer's step."""
        for held in self.layers.values():
            parameters = list(held.module.parameters())
            held.before = [p.detach().clone() for p in parameters]
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                held.values["gradient_norm"] = total_norm(gradients)

    @torch.no_grad()
    def read(self) -> list[LayerReading]:
        """Return what was seen since the last call, layer by layer; this waits for the device."""
        readings = []
        for name, held in self.layers.items():
            if held.before:
                pairs = zip(held.module.parameters(), held.before, strict=True)
                moved = [after - before for after, before in pairs]
                held.values["update_ratio"] = total_norm(moved) / total_norm(held.before)
            values = {key: value.item() for key, value in held.values.items()}
            readings.append(LayerReading(name, **values))
            held.values, held.before = {}, []
        return readings


def stack_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, layer) of every layer of every stack in the model, in order."""
    for path, module in model.named_modules():
        if isinstance(module, LayerStack):
            for index, layer in enumerate(module.layers):
                yield f"{path}.layers.{index}".lstrip("."), layer


def total_norm(tensors: list[Tensor]) -> Tensor:
    """Return the 2-norm of all tensors as one vector."""
    return torch.stack([tensor.norm() for tensor in tensors]).norm()


def _record_activation(held: _Held) -> Any:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        output = output.detach().float()
        held.values["activation_rms"] = output.square().mean().sqrt()
        held.values["activation_max"] = output.abs().max()

    return hook


def _record_attention(held: _Held, rows: int) -> Any:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        query, key, _, mask, *rest = inputs
        logits, allowed = attention_logits(query, key, mask, rest[0] if rest else None, rows)
        held.values["attention_logit_max"] = logits.masked_fill(~allowed, -math.inf).max()
        probabilities = logits.masked_fill(~allowed, -math.inf).softmax(-1)
        entropy = torch.special.entr(probabilities).sum(-1)
        choices = allowed.sum(-1) > 1
        held.values["attention_entropy"] = (entropy * choices).sum() / choices.sum().clamp(min=1)

    return hook


def attention_logits(
    query: Tensor, key: Tensor, mask: Mask, bias: Tensor | None, rows: int
) -> tuple[Tensor, Tensor]:
    """Compute attention's logits once more, for the first `rows` samples, in fp32.

    Returns:
        Logits and who may attend to whom, both (rows, heads, query length, key length).
    """
    query, key = query[:rows].detach().float(), key[:rows].detach().float()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if bias is not None:
        logits = logits + bias[:rows].detach().float()
    joined = join(mask, torch.zeros_like(logits[:1, :1]), query, key)
    allowed = torch.zeros_like(logits) if joined is None else joined[:rows]
    return logits, (allowed == 0).expand_as(logits)


def first_trouble(readings: list[LayerReading], limit: str = "fp16") -> tuple[str, str] | None:
    """Return (layer, reason) of the first layer past half of a format's range, or not finite.

    Args:
        readings: In the model's order.
        limit: "fp16" or "bf16".
    """
    for reading in readings:
        if not math.isfinite(reading.activation_rms) or not math.isfinite(reading.activation_max):
            return reading.name, "its activations are not finite"
        if reading.activation_max > LIMITS[limit] / 2:
            return (
                reading.name,
                f"an activation of {reading.activation_max:.3g} is past half of {limit}'s range",
            )
    return None
