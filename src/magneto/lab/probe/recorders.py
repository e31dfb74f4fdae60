"""Hooks that put down what one layer does: what it and its linear layers give, and its attention.

How a layer's output is read, and of which samples the attention, its stack says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from magneto.nn.attention import DotProductAttention, Mask
from magneto.nn.transformer import ProbedStack

# Where several modules of a layer have something to say, the largest counts, else the mean.
LARGEST = ("activation_max", "attention_logit_max")
Rows = slice | Tensor
ForwardHook = Callable[[nn.Module, tuple, Any], None]


@dataclass
class Held:
    """Tensors of one layer that wait to be read: the last one of each quantity and module.

    Attributes:
        module: The layer.
        stack: The one it is in.
        values: By quantity and the module it is of.
        before: The layer's weights before a step.
        rows: Samples whose attention is looked at, in the forward pass that is going on.
        real: Which of their positions are no padding, (samples, length); None: all count.
    """

    module: nn.Module
    stack: ProbedStack
    values: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    before: list[Tensor] = field(default_factory=list)
    rows: Rows = field(default_factory=lambda: slice(1))
    real: Tensor | None = None

    def keep(self, quantity: str, module: nn.Module, value: Tensor) -> None:
        """Put a value down, in place of an earlier one."""
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


def record_layer(held: Held, attention_rows: int) -> list[RemovableHandle]:
    """Hook a layer and what is in it.

    Args:
        held: Where values go.
        attention_rows: Samples whose attention is computed again.
    """
    handles = [
        held.module.register_forward_pre_hook(_choose_rows(held, attention_rows)),
        held.module.register_forward_hook(_record_output(held)),
    ]
    for module in held.module.modules():
        if isinstance(module, nn.Linear):
            handles.append(module.register_forward_hook(_record_largest(held)))
        elif isinstance(module, DotProductAttention):
            handles.append(module.register_forward_hook(_record_attention(held)))
    return handles


def _choose_rows(held: Held, count: int) -> Callable[[nn.Module, tuple], None]:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple) -> None:
        held.rows, held.real = held.stack.attention_samples(count, inputs)

    return hook


def _record_output(held: Held) -> ForwardHook:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple, output: Any) -> None:
        tokens = held.stack.tokens(output).detach().float()
        held.keep("activation_rms", module, tokens.square().mean().sqrt())
        held.keep("activation_max", module, tokens.abs().max())
        distinct = tokens - held.stack.position_means(tokens, inputs)
        held.keep("distinct_rms", module, distinct.square().mean().sqrt())

    return hook


def _record_largest(held: Held) -> ForwardHook:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        if output.numel():  # an expert of a modality that no sample has gives nothing
            held.keep("activation_max", module, output.detach().abs().max())

    return hook


def _record_attention(held: Held) -> ForwardHook:
    @torch.no_grad()
    def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        query, key, _, mask, *rest = inputs
        bias = rest[0] if rest else None
        logits, allowed = attention_logits(query, key, mask, bias, held.rows)
        if held.real is not None:
            allowed = allowed & held.real[:, None, :, None]
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
    query: Tensor, key: Tensor, mask: Mask, bias: Tensor | None, rows: Rows
) -> tuple[Tensor, Tensor]:
    """Compute attention's logits once more, for some samples, in fp32.

    Returns:
        Logits and who may attend to whom, both (samples, heads, query length, key length).
    """
    query, key = query[rows].detach().float(), key[rows].detach().float()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if bias is not None:
        logits = logits + _of_rows(bias, rows).detach().float()
    closed = mask.with_bias(torch.zeros_like(logits[:1, :1]), query, key)
    allowed = torch.ones_like(logits[:1, :1]) if closed is None else _of_rows(closed, rows) == 0
    if mask.seeing is not None:
        allowed = allowed & _of_rows(mask.seeing, rows)
    return logits, allowed.bool().expand_as(logits)


def _of_rows(shared: Tensor, rows: Rows) -> Tensor:
    """Return the rows of what may be the same for all samples."""
    return shared if len(shared) == 1 else shared[rows]
