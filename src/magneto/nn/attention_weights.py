"""Attention weights of a chosen layer, for pictures; training never computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from magneto.nn.dot_product import DotProductAttention, join
from magneto.nn.mask import Mask
from magneto.nn.multiway import MultiwayEncoder
from magneto.nn.packing import Packing
from magneto.nn.transformer import Encoder


@torch.no_grad()
def attention_weights(
    encoder: Encoder, x: Tensor, layer: int, attention_mask: Tensor | None = None
) -> Tensor:
    """Return what share each query gives to each key in one layer's self-attention.

    torch's fused attention never makes these weights. They are computed here once more, in fp32 and
    without dropout, from the queries and keys that it gets.

    Args:
        encoder: As it is; its mode and its weights do not change.
        x: Embeddings, (batch, length, width).
        layer: Its number, from 0 at the bottom.
        attention_mask: As in the encoder's `forward`.

    Returns:
        (batch, heads, length, length): queries by keys. Rows add up to 1; those that may attend to
        nothing are zeros.

    Raises:
        ValueError: If there is no such layer.
    """
    kernels = [part for part in encoder.modules() if isinstance(part, DotProductAttention)]
    return observed(
        kernels[layer : layer + 1], lambda: encoder.features(x, [layer], attention_mask)
    )


@torch.no_grad()
def multiway_attention_weights(
    encoder: MultiwayEncoder, vision: Tensor, language: Tensor, packing: Packing, layer: int
) -> Tensor:
    """Return the same of an encoder of packed samples.

    Args:
        encoder: As it is; its mode and its weights do not change.
        vision: Embeddings, (vision tokens, width).
        language: Embeddings, (language tokens, width).
        packing: Of these samples.
        layer: Its number, from 0 at the bottom.

    Returns:
        (samples, heads, length, length): queries by keys, a sample's vision tokens first. Keys that
        are padding get 0.

    Raises:
        ValueError: If there is no such layer.
    """
    # Both experts of a layer have a kernel; the first one's attends, for both.
    kernels = [
        next(part for part in each.modules() if isinstance(part, DotProductAttention))
        for each in encoder.layers
    ]
    return observed(
        kernels[layer : layer + 1], lambda: encoder.features(vision, language, packing, [layer])
    )


def observed(kernels: Sequence[nn.Module], run: Callable[[], Any]) -> Tensor:
    """Run an encoder; return the weights that the only kernel among `kernels` computes."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple) -> None:
        seen.append(probabilities(*inputs))

    hooks = [kernel.register_forward_pre_hook(keep) for kernel in kernels]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return seen[0]


def probabilities(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the softmax of the logits, (B, H, T, S); shapes as in `DotProductAttention`."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = query.float() @ key.float().transpose(-2, -1) * query.shape[-1] ** -0.5
    added = join(mask, torch.zeros_like(logits) if bias is None else bias.float(), query, key)
    shares = (logits if added is None else logits + added).softmax(dim=-1)
    return shares if mask.seeing is None else shares * mask.seeing
