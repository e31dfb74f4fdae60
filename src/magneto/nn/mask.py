"""Attention masks for padding, causal order and packed documents, built once per forward pass.

True means *may attend*, everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Mask:
    """What one kind of attention may look at, the same in every layer.

    Attributes:
        allowed: (batch or 1, 1, query length, key length) boolean, or None for everything. A row
            that may attend to nothing is opened, so that its softmax is finite; `seeing` shuts it.
        seeing: (batch or 1, 1, query length, 1) boolean: rows that may attend to something; None if
            all do.
        causal: True where `allowed` is None and each position sees itself and those before it.
    """

    allowed: Tensor | None = None
    seeing: Tensor | None = None
    causal: bool = False


def build_mask(
    attention_mask: Tensor | None, x: Tensor, past: int, causal: bool, window: int | None = None
) -> Mask:
    """Build the mask for queries `x` that follow `past` cached positions.

    Args:
        attention_mask: None, (batch, key length) or (batch, query length, key length), boolean.
        x: (batch, query length, width).
        past: Cached positions before `x`.
        causal: Whether a position sees only itself and those before it.
        window: Nearest positions that one sees, itself among them: those before it and, if it is
            not causal, as many after it; None for all.

    Raises:
        ValueError: If the mask is not boolean, or has another shape.
    """
    length = x.shape[1]
    order = None
    if window is not None or (causal and (past > 0 or attention_mask is not None)):
        keys = past + length if attention_mask is None else attention_mask.shape[-1]
        order = within_reach(length, keys, past, causal, window, x.device)[None, None]
    if attention_mask is None:
        if length == 1 and window is None:
            return Mask()
        return Mask(allowed=order, causal=causal and order is None)
    allowed = four_axes(attention_mask)
    if order is not None:
        allowed = allowed & order
    seeing = allowed.any(dim=-1, keepdim=True)
    return Mask(allowed=allowed | ~seeing, seeing=seeing)


def within_reach(
    length: int, keys: int, past: int, causal: bool, window: int | None, device: torch.device
) -> Tensor:
    """Return which keys a query may see by their order alone, (length, keys)."""
    query = torch.arange(past, past + length, device=device)[:, None]
    key = torch.arange(keys, device=device)
    near = query - key
    if window is not None:
        return (near < window) & (near >= (0 if causal else 1 - window))
    return near >= 0


def build_memory_mask(attention_mask: Tensor | None) -> Mask:
    """Build cross-attention's mask, from (batch, source) or (batch, target, source) lengths."""
    if attention_mask is None:
        return Mask()
    allowed = four_axes(attention_mask)
    seeing = allowed.any(dim=-1, keepdim=True)
    return Mask(allowed=allowed | ~seeing, seeing=seeing)


def four_axes(attention_mask: Tensor) -> Tensor:
    """Return a mask as (batch, 1, query length or 1, key length).

    Raises:
        ValueError: If it is not boolean, or has neither two nor three axes.
    """
    if attention_mask.dtype != torch.bool:
        raise ValueError(
            f"attention_mask must be boolean (True = may attend), not {attention_mask.dtype}; "
            "convert it with mask.bool()"
        )
    if attention_mask.ndim == 2:
        return attention_mask[:, None, None]
    if attention_mask.ndim == 3:
        return attention_mask[:, None]
    raise ValueError(
        "attention_mask must be (batch, key length) or (batch, query length, key length), "
        f"not {tuple(attention_mask.shape)}"
    )


def position_index(
    attention_mask: Tensor | None, x: Tensor, past: int, causal: bool = False
) -> Tensor:
    """Return each query's position, (batch or 1, query length): 0 where its document begins.

    A (batch, key length) mask with padding on the left moves the count to the first real token;
    padding elsewhere does not. Of a mask with three axes, see `document_positions`.
    """
    positions = torch.arange(past, past + x.shape[1], device=x.device)[None]
    if attention_mask is None or attention_mask.ndim not in (2, 3):
        return positions
    if attention_mask.ndim == 3:
        return document_positions(attention_mask, past, causal)
    first = attention_mask.int().argmax(dim=1, keepdim=True)
    return (positions - first).clamp(min=0)


def document_positions(attention_mask: Tensor, past: int, causal: bool) -> Tensor:
    """Return each query's position in its document, of several that are packed in one row.

    A document begins where nothing before is seen from here on, nor anything from here on before.
    So a mask that cuts a row in no two parts (a window, a prefix) counts through the whole row.
    With a cache, the first document begins at the earliest key that a query sees.

    Args:
        attention_mask: Boolean, (batch, query length, key length).
        past: Cached positions before the queries.
        causal: Whether a position sees only itself and those before it, whatever the mask says.

    Returns:
        (batch, query length).
    """
    length, keys = attention_mask.shape[1:]
    place = torch.arange(past, past + length, device=attention_mask.device)
    seen = attention_mask
    if causal:
        seen = seen & (torch.arange(keys, device=seen.device) <= place[:, None])
    nothing = ~seen.any(-1)
    earliest = seen.byte().argmax(-1).masked_fill(nothing, keys)
    earliest = earliest.flip(1).cummin(1).values.flip(1)
    begins = earliest >= place
    if not causal:
        latest = (keys - 1 - seen.flip(-1).byte().argmax(-1)).masked_fill(nothing, -1)
        before = nn.functional.pad(latest.cummax(1).values[:, :-1], (1, 0), value=-1)
        begins = begins & (before < place)
    start = torch.where(begins, place, earliest[:, :1].clamp(max=past)).cummax(1).values
    return place - start
