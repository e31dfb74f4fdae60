"""The key/value cache: keys and values of earlier tokens, so that generation reads each token once.

The classes have the shape that Hugging Face's caches have (`update`, `get_seq_length`, and for
cross-attention `is_updated`), so either kind can be handed to a `Decoder`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """What attention asks of a cache."""

    def update(self, key: Tensor, value: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Append (batch, heads, length, head width) to a layer; return all it now holds."""
        ...

    def get_seq_length(self, layer: int = 0, /) -> int:
        """Return how many positions a layer holds."""
        ...


class CacheLayer:
    """Keys and values of one layer, (batch, key heads, length, head width); empty at first."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None


class KeyValueCache:
    """A cache that grows by concatenation."""

    def __init__(self) -> None:
        self.layers: list[CacheLayer] = []

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append to a layer; return all of its keys and values."""
        while len(self.layers) <= layer:
            self.layers.append(CacheLayer())
        held = self.layers[layer]
        if held.keys is not None and held.values is not None:
            key = torch.cat((held.keys, key), dim=2)
            value = torch.cat((held.values, value), dim=2)
        held.keys, held.values = key, value
        return key, value

    def get_seq_length(self, layer: int = 0) -> int:
        """Return how many positions a layer holds."""
        if layer >= len(self.layers):
            return 0
        keys = self.layers[layer].keys
        return 0 if keys is None else keys.shape[2]

    def reorder(self, rows: Tensor) -> None:
        """Keep these batch rows, in this order (beam search)."""
        for held in self.layers:
            if held.keys is not None and held.values is not None:
                held.keys, held.values = held.keys[rows], held.values[rows]


class EncoderDecoderCache:
    """A growing cache for self-attention, and one that is filled once for cross-attention."""

    def __init__(self) -> None:
        self.self_attention_cache = KeyValueCache()
        self.cross_attention_cache = KeyValueCache()
        self.is_updated: dict[int, bool] = {}

    def get_seq_length(self, layer: int = 0) -> int:
        """Return how many target positions a layer holds."""
        return self.self_attention_cache.get_seq_length(layer)

    def reorder(self, rows: Tensor) -> None:
        """Keep these batch rows, in this order (beam search)."""
        self.self_attention_cache.reorder(rows)
        self.cross_attention_cache.reorder(rows)


def self_attention_cache(cache: Any) -> Cache | None:
    """Return the part of a cache that self-attention uses: all of it in a decoder-only model."""
    return getattr(cache, "self_attention_cache", cache)
