"""Multi-head attention: self-attention with one fused projection, and cross-attention.

Shapes: B batch, H heads, K key/value heads, T query length, S key length, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from magneto.nn.cache import Cache
from magneto.nn.config import TransformerConfig
from magneto.nn.dot_product import DotProductAttention
from magneto.nn.init import projection
from magneto.nn.mask import Mask
from magneto.nn.norm import Nothing, optional_norm
from magneto.nn.position import build_logits
from magneto.theory.placement import Sublayer


def join_heads(attended: Tensor) -> Tensor:
    """(B, H, T, D) to (B, T, H * D)."""
    return attended.transpose(1, 2).flatten(2)


class HeadScale(nn.Module):
    """One learned scalar per head, 1 at first (NormFormer, section 2.1)."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))
        self.head_width = head_width
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every scale to 1."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Scale each chunk of head_width features of (..., heads * head_width)."""
        return x * self.weight.repeat_interleave(self.head_width)


class Gate(nn.Module):
    """Lets a share of every element through (arXiv 2505.06708); a module, for hooks to see it."""

    def forward(self, joined: Tensor, logits: Tensor) -> Tensor:
        """Multiply (B, T, H * D) by the sigmoid of logits of the same shape."""
        return joined * logits.sigmoid()


class NoGate(nn.Module):
    """What stands where a row has no gate."""

    def forward(self, joined: Tensor, logits: Tensor) -> Tensor:
        """Return joined, (B, T, H * D)."""
        return joined


class Attention(nn.Module):
    """What self- and cross-attention share: attend, join the heads, gate, norm, project."""

    def __init__(self, config: TransformerConfig, sublayer: Sublayer) -> None:
        super().__init__()
        row = config.row
        self.head_width = config.head_width
        self.sublayer: Sublayer = sublayer
        wide, each = row.query_key_norm == "width", row.query_key_norm == "head"
        self.width_norm_q = optional_norm(wide, config.attention_width, config)
        self.width_norm_k = optional_norm(wide, config.key_value_width, config)
        self.head_norm_q = optional_norm(each, config.head_width, config)
        self.head_norm_k = optional_norm(each, config.head_width, config)
        self.head_norm_v = optional_norm(row.value_norm == "head", config.head_width, config)
        self.dot_product = DotProductAttention(config.attention_dropout)
        gated = sublayer in row.gated
        width, inner = config.width, config.attention_width
        self.gate_proj = projection(config, width, [("gate", inner)]) if gated else Nothing()
        self.gate = Gate() if gated else NoGate()
        self.scale_before_out = self._head_scale(config, "before_out")
        self.inside = optional_norm("inside" in row.slots(sublayer), inner, config)
        self.out_proj = projection(config, inner, [("out", width)])
        self.scale_after_out = self._head_scale(config, "after_out")

    def _head_scale(self, config: TransformerConfig, position: str) -> nn.Module:
        here = config.row.head_scale == position and self.sublayer == "self_attention"
        width = config.width if position == "after_out" else config.attention_width
        return HeadScale(config.heads, width // config.heads) if here else Nothing()

    def heads(self, x: Tensor) -> Tensor:
        """(..., heads * D) to (..., heads, D)."""
        return x.unflatten(-1, (-1, self.head_width))

    def queries(self, projected: Tensor) -> Tensor:
        """(..., H * D) to (..., H, D), normed."""
        return self.head_norm_q(self.heads(self.width_norm_q(projected)))

    def keys(self, projected: Tensor) -> Tensor:
        """(..., K * D) to (..., K, D), normed."""
        return self.head_norm_k(self.heads(self.width_norm_k(projected)))

    def values(self, projected: Tensor) -> Tensor:
        """(..., K * D) to (..., K, D), normed."""
        return self.head_norm_v(self.heads(projected))

    def output(self, joined: Tensor, x: Tensor) -> Tensor:
        """Gate what joined heads give, (..., H * D), by the sublayer's input x; norm, project."""
        joined = self.gate(self.scale_before_out(joined), self.gate_proj(x))
        return self.scale_after_out(self.out_proj(self.inside(joined)))

    def gate_roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield ("gate", weight) where there is a gate."""
        for name, parameter in self.gate_proj.named_parameters():
            if name == "weight":
                yield "gate", parameter


class SelfAttention(Attention):
    """Self-attention; queries, keys and values come from one matrix product."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__(config, "self_attention")
        self.layer = layer
        inner, shared = config.attention_width, config.key_value_width
        self.widths = [inner, shared, shared]
        self.qkv_proj = projection(
            config, config.width, [("q", inner), ("k", shared), ("v", shared)]
        )
        self.positions = build_logits(config)

    def forward(self, x: Tensor, mask: Mask, shared: Tensor | None, cache: Cache | None) -> Tensor:
        """Attend within x, (B, T, width), and what the cache holds of before."""
        return self.output(self.attend(*self.project(x), mask, shared, cache), x)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(..., width) to queries (..., H, D), keys and values (..., K, D), normed."""
        query, key, value = self.qkv_proj(x).split(self.widths, dim=-1)
        return self.queries(query), self.keys(key), self.values(value)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        shared: Tensor | None,
        cache: Cache | None,
    ) -> Tensor:
        """Attend; from (B, T, heads, D) each to the joined heads, (B, T, H * D)."""
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        query, key, bias = self.positions(query, key, shared)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        return join_heads(self.dot_product(query, key, value, mask, bias))

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of each projection; the fused one slice by slice, as views."""
        yield from zip("qkv", self.qkv_proj.weight.split(self.widths), strict=True)
        yield "out", self.out_proj.weight
        yield from self.gate_roles()
        yield from self.positions.roles()


class CrossAttention(Attention):
    """Attention of a decoder to the encoder's output. Its keys and values are computed once."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__(config, "cross_attention")
        self.layer = layer
        width, shared = config.width, config.key_value_width
        self.q_proj = projection(config, width, [("q", config.attention_width)])
        self.k_proj = projection(config, width, [("k", shared)])
        self.v_proj = projection(config, width, [("v", shared)])

    def forward(self, x: Tensor, memory: Tensor, mask: Mask, cache: Any) -> Tensor:
        """Attend from x, (B, T, width), to memory, (B, S, width)."""
        query = self.queries(self.q_proj(x)).transpose(1, 2)
        key, value = self.keys_values(memory, cache)
        return self.output(join_heads(self.dot_product(query, key, value, mask)), x)

    def keys_values(self, memory: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Return keys and values of the memory, from the cache if it has them."""
        if cache is not None and cache.is_updated.get(self.layer, False):
            held = cache.cross_attention_cache.layers[self.layer]
            return held.keys, held.values
        key = self.keys(self.k_proj(memory)).transpose(1, 2)
        value = self.values(self.v_proj(memory)).transpose(1, 2)
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer)
            cache.is_updated[self.layer] = True
        return key, value

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of each projection."""
        yield "q", self.q_proj.weight
        yield "k", self.k_proj.weight
        yield "v", self.v_proj.weight
        yield "out", self.out_proj.weight
        yield from self.gate_roles()
