"""Norms without scale and shift: both folded into the matrix product that reads the norm.

A norm's scale g and shift b come before a product W x + c of the normed input n: W (g n + b) + c is
(W g) n + (W b + c), with the same values up to rounding and a pass less over the activations.

`before` is read by queries, keys, values and the gate of self-attention; by queries and the gate of
cross-attention; by fc1. `inside` is read by the output projection of attention, and by fc2.

The others are read by a sum: `branch` and `after` join the residual stream, and the norm on top may
be read by an embedding table that the head shares. They stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from magneto.nn.attention import Attention, CrossAttention, SelfAttention
from magneto.nn.feed_forward import FeedForward
from magneto.nn.init import PartlyBiased, Projection
from magneto.nn.norm import LayerNorm, RMSNorm
from magneto.nn.residual import Residual

FOLDED = ("before", "inside")
# Of each kind of sublayer: what reads the norm before it, and what reads the norm inside.
READ_BEFORE = {
    SelfAttention: ("qkv_proj", "gate_proj"), CrossAttention: ("q_proj", "gate_proj"),
    FeedForward: ("fc1",),
}  # fmt: skip
READ_INSIDE = {SelfAttention: "out_proj", CrossAttention: "out_proj", FeedForward: "fc2"}


@torch.no_grad()
def folded(model: Any) -> Any:
    """Return a model that answers alike, whose norms before products only normalise.

    Args:
        model: With a configuration as `config`, which is all that its class is built of; in fp32.

    Returns:
        Another of the same class, in evaluation mode. Its projections have all their biases where
        the configuration has any, since a shift needs one.
    """
    config = replace(model.config, folded_norms=FOLDED, unbiased=())
    state = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, Projection) and config.bias:
            state[f"{name}.bias"] = whole_bias(module)
    for norm, name, products in norms_with_readers(model):
        for product in products:
            fold(state, norm, product)
        for part in ("weight", "bias"):
            state.pop(f"{name}.{part}", None)
    made = type(model)(config)
    made.load_state_dict(state)
    return made.eval()


def norms_with_readers(model: nn.Module) -> Iterator[tuple[nn.Module, str, list[str]]]:
    """Yield each norm that products read, its name, and the names of these products."""
    for name, module in model.named_modules():
        if isinstance(module, Residual):
            for inner, child in module.named_children():
                readers = READ_BEFORE.get(type(child), ())
                found = [f"{name}.{inner}.{reader}" for reader in readers
                         if isinstance(getattr(child, reader), Projection)]  # fmt: skip
                if found and scales(module.before):
                    yield module.before, f"{name}.before", found
        if isinstance(module, Attention | FeedForward) and scales(module.inside):
            yield module.inside, f"{name}.inside", [f"{name}.{READ_INSIDE[type(module)]}"]


def scales(norm: nn.Module) -> bool:
    """Return whether a slot holds a norm with a scale."""
    return isinstance(norm, LayerNorm | RMSNorm) and norm.weight is not None


def fold(state: dict[str, Tensor], norm: nn.Module, product: str) -> None:
    """Multiply a product's columns by a norm's scale; add to its bias what the shift gives."""
    tensors = dict(norm.named_parameters())
    weight = state[f"{product}.weight"]
    if "bias" in tensors:
        state[f"{product}.bias"] = state[f"{product}.bias"] + weight @ tensors["bias"]
    state[f"{product}.weight"] = weight * tensors["weight"]


def whole_bias(module: Projection) -> Tensor:
    """Return a projection's bias with zeros for the rows that have none."""
    rows = len(module.weight)
    if module.bias is None:
        return module.weight.new_zeros(rows)
    if not isinstance(module, PartlyBiased):
        return module.bias
    held = zip(module.rows, module.has_bias, strict=True)
    parts = iter(module.bias.split([count for count, has in held if has]))
    return torch.cat([
        next(parts) if has else module.weight.new_zeros(count)
        for count, has in zip(module.rows, module.has_bias, strict=True)
    ])  # fmt: skip
