"""Multi-head self-attention and cross-attention, with masks, caches and recorded weights.

A boolean mask is True where a query may attend to a key. Masks cover padding, causal order and
packed documents.

Shapes: B batch, H heads, K key/value heads, T query length, S key length, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import TransformerConfig
from magneto.nn.init import Part, identity, optional_norm, projection, slot_norm
from magneto.nn.position import build_layer_positions
from magneto.theory.placement import Sublayer


class Attention(nn.Module):
    """Base class of self-attention and cross-attention, with norms, gate and output projection."""

    def __init__(self, config: TransformerConfig, sublayer: Sublayer) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.sublayer: Sublayer = sublayer
        self.dot_product = DotProductAttention(config.attention_dropout)
        gated = sublayer in config.row.gated
        width, inner = config.width, config.attention_width
        self.gate_proj: Part = projection(config, width, [("gate", inner)]) if gated else identity
        self.gate: Part = Gate() if gated else identity
        self.scale_before_out = self._head_scale(config, "before_out")
        self.inside = slot_norm(config, sublayer, "inside", inner)
        self.out_proj = projection(config, inner, [("out", width)])
        self.scale_after_out = self._head_scale(config, "after_out")

    def _head_scale(self, config: TransformerConfig, position: str) -> Part:
        here = config.row.head_scale == position and self.sublayer == "self_attention"
        width = config.width if position == "after_out" else config.attention_width
        return HeadScale(config.heads, width // config.heads) if here else identity

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width))

    def output(self, joined: Tensor, x: Tensor) -> Tensor:
        """Return the sublayer's output, (..., width).

        Args:
            joined: Outputs of all heads, joined to (..., H * D).
            x: Input of the sublayer, (..., width). The gate is a function of `x`.
        """
        joined = self.gate(self.scale_before_out(joined), self.gate_proj(x))
        return self.scale_after_out(self.out_proj(self.inside(joined)))


class SelfAttention(Attention):
    """Self-attention with one fused projection of queries, keys and values."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__(config, "self_attention")
        self.layer = layer
        inner, shared = config.attention_width, config.key_value_width
        self.qkv_proj = projection(
            config, config.width, [("q", inner), ("k", shared), ("v", shared)]
        )
        self.head_counts = [width // config.head_width for width in (inner, shared, shared)]
        norms = build_head_norms(config)
        normed = any(norm is not identity for norm in norms)
        self.norm_heads: Part = HeadNorms(norms, self.head_counts) if normed else identity
        self.positions = build_layer_positions(config)

    def forward(self, x: Tensor, mask: Mask, shared: Tensor | None, cache: Cache | None) -> Tensor:
        """Let x (B, T, width) attend to itself and to cached positions. Return the output."""
        return self.output(self.attend(self.project(x), mask, shared, cache), x)

    def project(self, x: Tensor) -> Tensor:
        """Project x (..., width) to heads of queries, keys and values, (..., H + 2 * K, D)."""
        return self.norm_heads(self.heads(self.qkv_proj(x)))

    def attend(
        self, heads: Tensor, mask: Mask, shared: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Map heads (B, T, H + 2 * K, D) of queries, keys and values to outputs (B, T, H * D)."""
        query, key, value = heads.transpose(1, 2).split(self.head_counts, dim=1)
        query, key, bias = self.positions(query, key, shared)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        return join_heads(self.dot_product(query, key, value, mask, bias))


class CrossAttention(Attention):
    """Attention of a decoder to the encoder's output, with an optional cache of keys and values."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__(config, "cross_attention")
        self.layer = layer
        width, shared = config.width, config.key_value_width
        self.q_proj = projection(config, width, [("q", config.attention_width)])
        self.k_proj = projection(config, width, [("k", shared)])
        self.v_proj = projection(config, width, [("v", shared)])
        self.norm_q, self.norm_k, self.norm_v = build_head_norms(config)

    def forward(self, x: Tensor, memory: Tensor, mask: Mask, cache: Any) -> Tensor:
        """Let x (B, T, width) attend to memory (B, S, width). Return the output."""
        query = self.norm_q(self.heads(self.q_proj(x))).transpose(1, 2)
        key, value = self.keys_values(memory, cache)
        return self.output(join_heads(self.dot_product(query, key, value, mask)), x)

    def keys_values(self, memory: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        if cache is not None and cache.is_updated.get(self.layer, False):
            held = cache.cross_attention_cache.layers[self.layer]
            return held.keys, held.values
        key = self.norm_k(self.heads(self.k_proj(memory))).transpose(1, 2)
        value = self.norm_v(self.heads(self.v_proj(memory))).transpose(1, 2)
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer)
            cache.is_updated[self.layer] = True
        return key, value


def build_head_norms(config: TransformerConfig) -> tuple[Part, Part, Part]:
    """Build the norms of queries, keys and values.

    The input and the output of each norm have the shape (..., heads, D).
    """
    row, each = config.row, config.head_width

    def build(kind: str, width: int) -> Part:
        norm = optional_norm(kind != "none", each if kind == "head" else width, config)
        return WidthNorm(norm) if kind == "width" else norm

    return (
        build(row.query_key_norm, config.attention_width),
        build(row.query_key_norm, config.key_value_width),
        build(row.value_norm, config.key_value_width),
    )


class WidthNorm(nn.Module):
    """Norm over all heads together."""

    def __init__(self, norm: Part) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, heads: Tensor) -> Tensor:
        return self.norm(heads.flatten(-2)).view_as(heads)


class HeadNorms(nn.Module):
    """Norms of the queries, keys and values of self-attention."""

    def __init__(self, norms: tuple[Part, Part, Part], counts: list[int]) -> None:
        super().__init__()
        self.q, self.k, self.v = norms
        self.counts = counts

    def forward(self, heads: Tensor) -> Tensor:
        """Apply the norms to heads of queries, keys and values, (..., H + 2 * K, D)."""
        query, key, value = heads.split(self.counts, dim=-2)
        return torch.cat((self.q(query), self.k(key), self.v(value)), dim=-2)


class DotProductAttention(nn.Module):
    """Softmax attention. Hooks on this module can read queries, keys and masks."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Tensor | None = None
    ) -> Tensor:
        """Return each head's output, (B, H, T, D).

        Args:
            query: Queries of the shape (B, H, T, D).
            key: Keys of the shape (B, K, S, D).
            value: Values of the shape (B, K, S, D).
            mask: Mask of the allowed pairs. The output of a query without allowed keys is 0.
            bias: Bias on the logits, broadcast to (B, H, T, S).
        """
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask.with_bias(bias, query, key),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask.causal and bias is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return attended if mask.seeing is None else attended * mask.seeing


def join_heads(attended: Tensor) -> Tensor:
    return attended.transpose(1, 2).flatten(2)


class HeadScale(nn.Module):
    """Learned scalar per head, initially 1 (NormFormer, section 2.1)."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))
        self.head_width = head_width
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.repeat_interleave(self.head_width)


class Gate(nn.Module):
    """Sigmoid gate (arXiv 2505.06708). It is a module so that hooks can be attached."""

    def forward(self, joined: Tensor, logits: Tensor) -> Tensor:
        return joined * logits.sigmoid()


@dataclass(frozen=True)
class Mask:
    """Pairs of query and key that self-attention or cross-attention allows, in every layer.

    Attributes:
        allowed: Mask of allowed pairs, boolean (batch or 1, 1, query length, key length). If
            `allowed` is None and `causal` is False, every query may attend to every key. If a query
            has no allowed keys, its row is True everywhere, so that the softmax is finite.
        seeing: Mask of queries with allowed keys, boolean (batch or 1, 1, query length, 1). Queries
            without allowed keys get the output 0. None means that every query has an allowed key.
        causal: True if the mask is the causal order alone: each position may attend to itself and
            to all earlier positions. Then `allowed` is None. If the causal order is combined with
            padding, a window or a cache, `causal` is False and `allowed` is the combined mask.
    """

    allowed: Tensor | None = None
    seeing: Tensor | None = None
    causal: bool = False

    def with_bias(self, bias: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        if bias is None:
            return self.allowed
        allowed = self.allowed
        if self.causal:
            shape = (query.shape[2], key.shape[2])
            allowed = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        if allowed is None:
            return bias
        return bias.masked_fill(~allowed, float("-inf"))


def build_mask(
    attention_mask: Tensor | None, x: Tensor, past: int, causal: bool, window: int | None = None
) -> Mask:
    """Combine padding, causal order and window in one mask for the input `x`.

    Args:
        attention_mask: Boolean mask, (batch, key length) or (batch, query length, key length), or
            None.
        x: Input of the stack, (batch, query length, width).
        past: Number of cached positions before `x`.
        causal: True for causal attention: no position attends to a later position.
        window: Number of positions that a query attends to, itself included, or None for all
            positions. Without `causal`, the query also attends to the next `window` - 1 positions.

    Raises:
        ValueError: If the mask is not boolean or has a wrong shape.
    """
    batch, length = x.shape[:2]
    keys, order = past + length, None
    check_mask(attention_mask, batch, length, keys)
    if window is not None or (causal and (past > 0 or attention_mask is not None)):
        order = order_mask(length, keys, past, causal, window, x.device)[None, None]
    if attention_mask is None:
        if length == 1 and window is None:
            return Mask()
        return Mask(allowed=order, causal=causal and order is None)
    allowed = four_dimensional(attention_mask)
    return open_empty_rows(allowed if order is None else allowed & order)


def order_mask(
    length: int, keys: int, past: int, causal: bool, window: int | None, device: torch.device
) -> Tensor:
    query = torch.arange(past, past + length, device=device)[:, None]
    key = torch.arange(keys, device=device)
    near = query - key
    if window is not None:
        return (near < window) & (near >= (0 if causal else 1 - window))
    return near >= 0


def build_memory_mask(attention_mask: Tensor | None) -> Mask:
    """Build the mask of cross-attention.

    `attention_mask` is boolean, (batch, source) or (batch, target, source), or None.
    """
    return Mask() if attention_mask is None else open_empty_rows(four_dimensional(attention_mask))


def open_empty_rows(allowed: Tensor) -> Mask:
    seeing = allowed.any(dim=-1, keepdim=True)
    return Mask(allowed=allowed | ~seeing, seeing=seeing)


def four_dimensional(attention_mask: Tensor) -> Tensor:
    return attention_mask[:, None, None] if attention_mask.ndim == 2 else attention_mask[:, None]


def check_mask(attention_mask: Tensor | None, batch: int, queries: int, keys: int) -> None:
    """Raise ValueError if a mask is not boolean or has a wrong shape."""
    if attention_mask is None:
        return
    if attention_mask.dtype != torch.bool:
        raise ValueError(
            f"attention_mask must be boolean (True = may attend), not {attention_mask.dtype}; "
            "convert it with mask.bool()"
        )
    shape, padding, pairs = tuple(attention_mask.shape), (batch, keys), (batch, queries, keys)
    if shape not in (padding, pairs):
        raise ValueError(f"attention_mask must have the shape {padding} (batch, key length) or "
                         f"{pairs} (batch, query length, key length), not {shape}")  # fmt: skip


def position_index(
    attention_mask: Tensor | None, x: Tensor, past: int, causal: bool = False
) -> Tensor:
    """Return the position of each query in its document, (batch or 1, query length).

    Positions count from 0. If the mask is (batch, key length), position 0 is the first token that
    is not padding. For a mask with three dimensions, see `document_positions`.
    """
    positions = torch.arange(past, past + x.shape[1], device=x.device)[None]
    if attention_mask is None or attention_mask.ndim not in (2, 3):
        return positions
    if attention_mask.ndim == 3:
        return document_positions(attention_mask, past, causal)
    first = attention_mask.int().argmax(dim=1, keepdim=True)
    return (positions - first).clamp(min=0)


def document_positions(attention_mask: Tensor, past: int, causal: bool) -> Tensor:
    """Return the position of each query in its document, (batch, query length).

    A sequence may contain several packed documents. A document starts at position p if positions
    before p and positions from p on do not attend to each other. A sequence that cannot be divided
    in this way is one document. A sliding window or a prefix can hide where a document starts. If
    there is a cache, the first document starts at the earliest key to which any query attends.

    `attention_mask` is boolean, (batch, query length, key length). `past` is the number of
    positions in the cache.
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
        before = F.pad(latest.cummax(1).values[:, :-1], (1, 0), value=-1)
        begins = begins & (before < place)
    start = torch.where(begins, place, earliest[:, :1].clamp(max=past)).cummax(1).values
    return place - start


class Cache(Protocol):
    """Interface of key/value caches, including the caches of Hugging Face's transformers."""

    def update(self, key: Tensor, value: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Append keys and values to a layer's cache. Return all keys and values in the cache.

        All tensors have the shape (batch, heads, length, head width).
        """
        ...

    def get_seq_length(self, layer: int = 0, /) -> int:
        """Return the number of cached positions of a layer."""
        ...


@dataclass
class CacheLayer:
    """Cached keys and values of one layer, (batch, key heads, length, head width)."""

    keys: Tensor
    values: Tensor


class KeyValueCache:
    """Cache that grows by concatenation."""

    def __init__(self) -> None:
        self.layers: dict[int, CacheLayer] = {}

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if held := self.layers.get(layer):
            key = torch.cat((held.keys, key), dim=2)
            value = torch.cat((held.values, value), dim=2)
        self.layers[layer] = CacheLayer(key, value)
        return key, value

    def get_seq_length(self, layer: int = 0) -> int:
        return self.layers[layer].keys.shape[2] if layer in self.layers else 0

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the batch, in the order of `rows`."""
        for held in self.layers.values():
            held.keys, held.values = held.keys[rows], held.values[rows]


class EncoderDecoderCache:
    """Cache of an encoder-decoder: a cache for self-attention and a cache for cross-attention."""

    def __init__(self) -> None:
        self.self_attention_cache = KeyValueCache()
        self.cross_attention_cache = KeyValueCache()
        self.is_updated: dict[int, bool] = {}

    def get_seq_length(self, layer: int = 0) -> int:
        return self.self_attention_cache.get_seq_length(layer)


def self_attention_cache(cache: Any) -> Cache | None:
    """Return the self-attention part of an encoder-decoder's cache.

    A cache without the attribute `self_attention_cache` is returned unchanged.
    """
    return getattr(cache, "self_attention_cache", cache)


@torch.no_grad()
def record_attention_weights(layer: nn.Module, run: Callable[[], Any]) -> Tensor:
    """Run a model, and return the attention weights of one layer, (B, H, T, S).

    Each row of weights sums to 1, but rows of queries without allowed keys are 0. Fused attention
    does not return weights. The function computes the weights from queries and keys, in
    fp32 without dropout. In a layer with experts, the first expert's attention is recorded.
    """
    attention = next(part for part in layer.modules() if isinstance(part, DotProductAttention))
    found: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple) -> None:
        found.append(softmax_weights(*inputs))

    hook = attention.register_forward_pre_hook(record)
    try:
        run()
    finally:
        hook.remove()
    return found[0]


def softmax_weights(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Tensor | None = None
) -> Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = query.float() @ key.float().transpose(-2, -1) * query.shape[-1] ** -0.5
    bias = torch.zeros_like(logits) if bias is None else bias.float()
    added = mask.with_bias(bias, query, key)
    shares = (logits if added is None else logits + added).softmax(dim=-1)
    return shares if mask.seeing is None else shares * mask.seeing
