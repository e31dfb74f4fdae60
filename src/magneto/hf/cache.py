"""transformers' static caches, seen as caches that grow: they return only what is filled."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache


class GrowingView:
    """A preallocated cache of transformers, seen as one that grows: only what is filled."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.past = int(cache.get_seq_length())

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append (batch, heads, length, head width) to a layer; return all that is filled."""
        keys, values = self.cache.update(key, value, layer)
        end = self.past + key.shape[2]
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, layer: int = 0) -> int:
        """Return how many positions were filled before this forward pass."""
        return self.past


class GrowingPair:
    """The same of a cache with a part for cross-attention, which is filled once."""

    def __init__(self, cache: EncoderDecoderCache) -> None:
        self.self_attention_cache = growing(cache.self_attention_cache)
        self.cross_attention_cache = cache.cross_attention_cache
        self.is_updated = cache.is_updated


def growing(cache: Any) -> Any:
    """Return a cache that gives back only what is filled; None stays None."""
    if isinstance(cache, EncoderDecoderCache):
        return GrowingPair(cache)
    return GrowingView(cache) if getattr(cache, "is_compileable", False) else cache
