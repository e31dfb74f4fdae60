"""Position encodings: learned, sinusoidal, rotary (RoPE), relative (T5, Transformer-XL, ALiBi).

Each kind has two halves. The stack's half runs once per forward pass: it may add something to the
embeddings, and it returns what the layers share. The layer's half sits between the projections and
the attention: from queries, keys and the shared tensor it returns queries, keys and a bias on the
attention logits. Absolute kinds use only the first half, relative ones the second. Places on a grid
have their first half in `magneto.nn.grid_position`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from magneto.nn.alibi import AlibiTable
from magneto.nn.config import TransformerConfig
from magneto.nn.embedding import Table
from magneto.nn.grid_position import bias_rows
from magneto.nn.init import Projection


class NoPositions(nn.Module):
    """Order is not told: the stack is a function of a set, but for causal masks."""

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return (batch, length, width) unchanged, and nothing to share."""
        return x, None


class LearnedPositions(nn.Module):
    """A table of `max_length` vectors, added to the embeddings; normal with std width ** -0.5."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.table = Table(config.max_length, config.width, std=config.width**-0.5)

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Add the vectors of `index`, (batch or 1, length), to x."""
        if past + x.shape[1] > self.table.num_embeddings:
            raise ValueError(
                f"input of length {past + x.shape[1]} is longer than max_length, "
                f"{self.table.num_embeddings}"
            )
        return x + self.table(index), None


class SinusoidalPositions(nn.Module):
    """Sines and cosines of wavelengths from 2 pi to 10000 * 2 pi, added (arXiv 1706.03762, 3.5).

    All sines come first, then all cosines, as in Marian; the paper interleaves them.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.width = config.width

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Add the vectors of `index`, (batch or 1, length), to x."""
        return x + sinusoids(index, self.width).type_as(x), None


class RotaryTable(nn.Module):
    """Shares the angles by which queries and keys turn (arXiv 2104.09864)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.base = config.rotary_base

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return x, and (2, batch or 1, 1, length, head width) of cosines and sines."""
        pairs = torch.arange(0, self.head_width, 2, device=x.device, dtype=torch.float32)
        angles = index[:, None, :, None].float() * self.base ** (-pairs / self.head_width)
        angles = torch.cat((angles, angles), dim=-1)
        return x, torch.stack((angles.cos(), angles.sin()))


class T5Table(nn.Module):
    """Shares a learned bias per head and distance bucket (arXiv 1910.10683, section 2.1).

    Half of the 32 buckets are single distances, the rest grow logarithmically up to 128. An encoder
    splits them between both directions; a decoder, which never looks ahead, uses all for the past.
    """

    buckets = 32
    furthest = 128

    def __init__(self, config: TransformerConfig, bidirectional: bool) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        self.bias = Table(self.buckets, config.heads, std=0.0)

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return x, and the bias (1, heads, query length, key length)."""
        keys = torch.arange(past + x.shape[1], device=x.device)
        distance = keys[None] - keys[past:, None]
        return x, self.bias(self.bucket(distance)).permute(2, 0, 1)[None].to(x.dtype)

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each signed distance, key minus query."""
        count = self.buckets
        offset = torch.zeros_like(distance)
        if self.bidirectional:
            count //= 2
            offset = (distance > 0).long() * count
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = count // 2
        growth = (distance.clamp(min=1).float() / exact).log() / math.log(self.furthest / exact)
        far = (exact + (growth * (count - exact)).long()).clamp(max=count - 1)
        return offset + torch.where(distance < exact, distance, far)


class TransformerXLTable(nn.Module):
    """Shares the sinusoids of every distance from a key to a query (arXiv 1901.02860, 3.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.width = config.width

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return x, and (key length + query length, width), from the furthest key before a query.

        The last row is one distance more than there is, for `shift`.
        """
        queries, keys = x.shape[1], past + x.shape[1]
        distance = torch.arange(keys - 1, -queries - 1, -1, device=x.device)
        return x, sinusoids(distance, self.width).to(x.dtype)


class LayerPositions(nn.Module):
    """The layer's half of any kind."""

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of each projection in it: none."""
        yield from ()


class PlainLogits(LayerPositions):
    """The layer's half of absolute positions: nothing."""

    def forward(
        self, query: Tensor, key: Tensor, shared: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries and keys unchanged, and no bias."""
        return query, key, None


class RotaryLogits(LayerPositions):
    """The layer's half of rotary positions: turns queries and keys."""

    def forward(
        self, query: Tensor, key: Tensor, shared: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Turn (batch, heads, length, head width) by the shared cosines and sines."""
        cosine, sine = shared.to(query.dtype)
        return rotate(query, cosine, sine), rotate(key, cosine, sine), None


class BiasedLogits(LayerPositions):
    """The layer's half of a shared bias."""

    def forward(
        self, query: Tensor, key: Tensor, shared: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries and keys unchanged, with the shared bias."""
        return query, key, shared


class GridBiasLogits(LayerPositions):
    """The layer's half of BEiT's relative bias: a table of its own, zero at first."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        assert config.grid is not None
        self.bias = Table(bias_rows(config.grid), config.heads, std=0.0)

    def forward(
        self, query: Tensor, key: Tensor, shared: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries and keys unchanged, with the biases of the shared numbers of rows."""
        return query, key, self.bias(shared).permute(2, 0, 1)[None].to(query.dtype)


class TransformerXLLogits(LayerPositions):
    """The layer's half of Transformer-XL's relative positions, as in ESPnet's encoders.

    A logit is (q + u) k + (q + v) W r, where r are the sinusoids of the distance (arXiv 1901.02860,
    section 3.3). W is one matrix per layer; u and v, a vector per head each, are drawn Xavier
    uniform, as in ESPnet. The second term is a bias on the logits of torch's attention, a view of
    the products with all distances, (batch, heads, length, 2 * length): shifting copies nothing.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        slices = [("position", config.attention_width)]
        self.position_proj = Projection(config.width, slices, bias=False)
        self.content_bias = nn.Parameter(torch.empty(config.heads, config.head_width))
        self.position_bias = nn.Parameter(torch.empty(config.heads, config.head_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw u and v."""
        nn.init.xavier_uniform_(self.content_bias)
        nn.init.xavier_uniform_(self.position_bias)

    def forward(
        self, query: Tensor, key: Tensor, shared: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries plus u, keys, and the bias (batch, heads, query length, key length)."""
        content, place = self.content_bias[:, None], self.position_bias[:, None]
        distances = self.position_proj(shared).unflatten(-1, self.content_bias.shape)
        asked = (query + place.type_as(query)) * query.shape[-1] ** -0.5
        bias = shift(asked @ distances.permute(1, 2, 0).type_as(asked))
        return query + content.type_as(query), key, bias

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield ("position", weight)."""
        yield "position", self.position_proj.weight


def shift(products: Tensor) -> Tensor:
    """From products with distances to a bias per key, by views alone.

    Args:
        products: (..., query length, key length + query length); the first column is the furthest
            key before the last query, and each further one a step towards the future.

    Returns:
        (..., query length, key length): query i finds its first key one column earlier than query
        i - 1 did.
    """
    queries = products.shape[-2]
    keys = products.shape[-1] - queries
    slanted = products.flatten(-2)[..., queries - 1 : -1].unflatten(-1, (queries, -1))
    return slanted[..., :keys]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair (i, i + half) of the last axis."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def sinusoids(index: Tensor, width: int) -> Tensor:
    """Return (..., width) sines then cosines of positions `index`, fp32; an odd width ends in 0."""
    half = width // 2
    steps = torch.arange(half, device=index.device, dtype=torch.float32)
    frequency = 10000.0 ** (-steps / max(half, 1))
    angles = index[..., None].float() * frequency
    return nn.functional.pad(torch.cat((angles.sin(), angles.cos()), dim=-1), (0, width - 2 * half))


def build_positions(config: TransformerConfig, bidirectional: bool) -> nn.Module:
    """Build the stack's half of the configured kind."""
    kinds = {
        "none": NoPositions,
        "learned": lambda: LearnedPositions(config),
        "sinusoidal": lambda: SinusoidalPositions(config),
        "rotary": lambda: RotaryTable(config),
        "t5": lambda: T5Table(config, bidirectional),
        "transformer_xl": lambda: TransformerXLTable(config),
        "alibi": lambda: AlibiTable(config),
    }
    return kinds[config.positions]()


def build_logits(config: TransformerConfig) -> LayerPositions:
    """Build the layer's half of the configured kind."""
    kinds = {
        "rotary": RotaryLogits,
        "t5": BiasedLogits,
        "alibi": BiasedLogits,
        "transformer_xl": lambda: TransformerXLLogits(config),
    }
    on_a_grid = {
        "relative_bias": lambda: GridBiasLogits(config),
        "shared_relative_bias": BiasedLogits,
        "rotary": RotaryLogits,
    }
    plain = kinds.get(config.positions, PlainLogits)
    return on_a_grid.get(config.grid_positions, plain)()
