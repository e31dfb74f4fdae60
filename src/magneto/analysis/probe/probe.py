"""Hooks on layers and attention that measure a running model without changing it.

What is watched, per layer: the RMS and the largest magnitude of the activations, the gradient norm
of the weights, the ratio of the last update to the weights, and of attention the largest logit and
the entropy of its probabilities. Everything stays on the device until `read` is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from magneto.nn.dot_product import DotProductAttention, join
from magneto.nn.mask import Mask
from magneto.nn.transformer import LayerStack
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
        distinct_rms: RMS of the output less its mean over the positions of the same sample: what
            tells positions apart. Padding counts as positions.
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


QUANTITIES = tuple(field.name for field in fields(LayerReading) if field.name != "name")
# Where several modules of a layer have something to say, the largest counts, else the mean.
LARGEST = ("activation_max", "attention_logit_max")


@dataclass
class _Held:
    """Tensors of one layer that wait for `read`: the last one of each quantity and module."""

    module: nn.Module
    values: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    before: list[Tensor] = field(default_factory=list)

    def keep(self, quantity: str, module: nn.Module, value: Tensor) -> None:
        self.values[quantity, id(module)] = value.detach().float()

    def take(self) -> dict[str, Tensor]:
        """Return one value per quantity that was seen, and forget all."""
        taken = {}
        for quantity in dict.fromkeys(name for name, _ in self.values):
            parts = [value for (name, _), value in self.values.items() if name == quantity]
            value = torch.stack(parts)
            taken[quantity] = value.max() if quantity in LARGEST else value.mean()
        self.values, self.before = {}, []
        return taken


class Probe:
    """Watches the layers of every stack in a model.

    Use `with probe.watch():` around forward and backward, `probe.mark()` before the optimizer's
    step to measure its update, and `probe.read()` after it. Under several ranks activations are
    this rank's, gradients and updates everyone's.
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
        handles = self.hook()
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def hook(self) -> list[RemovableHandle]:
        """Hook the layers until the handles are removed."""
        handles = []
        for held in self.layers.values():
            handles.append(held.module.register_forward_hook(_record_output(held)))
            for module in held.module.modules():
                if isinstance(module, nn.Linear):
                    handles.append(module.register_forward_hook(_record_largest(held)))
                elif isinstance(module, DotProductAttention):
                    record = _record_attention(held, self.attention_rows)
                    handles.append(module.register_forward_hook(record))
        return handles

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


def stack_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, layer) of every layer of every stack in the model, in order."""
    for path, module in model.named_modules():
        if isinstance(module, LayerStack):
            for index, layer in enumerate(module.layers):
                yield f"{path}.layers.{index}".lstrip("."), layer


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of all tensors as one vector; of tensors in shares, that of the whole."""
    norm = torch.stack([tensor.float().norm() for tensor in tensors]).norm()
    return norm.full_tensor() if is_sharded(norm) else norm


ForwardHook = Callable[[nn.Module, tuple, Tensor], None]


def _record_output(held: _Held) -> ForwardHook:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        output = output.detach().float()
        held.keep("activation_rms", module, output.square().mean().sqrt())
        held.keep("activation_max", module, output.abs().max())
        distinct = output - output.mean(1, keepdim=True)
        held.keep("distinct_rms", module, distinct.square().mean().sqrt())

    return hook


def _record_largest(held: _Held) -> ForwardHook:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        held.keep("activation_max", module, output.detach().abs().max())

    return hook


def _record_attention(held: _Held, rows: int) -> ForwardHook:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        query, key, _, mask, *rest = inputs
        bias, cap = rest[0] if rest else None, module.get_submodule("cap")
        logits, allowed = attention_logits(query, key, mask, bias, rows, cap)
        held.keep("attention_logit_max", module, logits.masked_fill(~allowed, -math.inf).max())
        seen = allowed.sum(-1)
        some = seen > 1  # where there is something to choose from
        # A row that sees nothing is opened, so that it has a softmax; it does not count.
        open_rows = allowed | (seen == 0)[..., None]
        probabilities = logits.masked_fill(~open_rows, -math.inf).softmax(-1)
        entropy = torch.special.entr(probabilities).sum(-1)
        count = some.sum().clamp(min=1)
        held.keep("attention_entropy", module, torch.where(some, entropy, 0).sum() / count)
        share = entropy / seen.clamp(min=2).log()
        held.keep("entropy_share", module, torch.where(some, share, 0).sum() / count)

    return hook


def attention_logits(
    query: Tensor,
    key: Tensor,
    mask: Mask,
    bias: Tensor | None,
    rows: int,
    cap: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Compute attention's logits once more, for the first `rows` samples, in fp32.

    Returns:
        Logits and who may attend to whom, both (rows, heads, query length, key length).
    """
    query, key = query[:rows].detach().float(), key[:rows].detach().float()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = cap(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]))
    if bias is not None:
        logits = logits + bias[:rows].detach().float()
    closed = join(mask, torch.zeros_like(logits[:1, :1]), query, key)
    allowed = torch.ones_like(logits[:1, :1]) if closed is None else closed[:rows] == 0
    if mask.seeing is not None:
        allowed = allowed & mask.seeing[:rows]
    return logits, allowed.bool().expand_as(logits)


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
