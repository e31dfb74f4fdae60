"""Position encodings: learned, sinusoidal, rotary (RoPE), relative (T5, Transformer-XL, ALiBi).

Images have a grid of patches and two more encodings: BEiT's relative bias, and rotary positions in
two dimensions. Grid encodings act in attention. They can be combined with learned or sinusoidal
positions, which are added to the embeddings. Prefix vectors, such as a class token, have no place
on the grid.

A position encoding consists of one module for the stack and one module for each layer. The stack's
module runs at the start of the forward pass. It may change the embeddings, or compute a tensor for
all layers. A layer's module runs in the layer's attention. It may change queries and keys, or add a
bias to the logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import Grid, TransformerConfig
from magneto.nn.embedding import VectorTable
from magneto.nn.init import Projection
from magneto.theory.placement import Sublayer

Logits = tuple[Tensor, Tensor, Tensor | None]
"""Queries, keys, and a bias for the attention logits (or None)."""

# Suffixes of the names of position tensors.
ABSOLUTE = "position_embedding.table.weight"
SHARED_BIAS = "grid_positions.bias.weight"
OWN_BIAS = "attention.positions.bias.weight"


class StackPositions(nn.Module):
    """Module of a position encoding that runs once per forward pass, before the first layer.

    `forward` returns the embeddings, possibly changed, and a tensor for all layers (or None). This
    base class does nothing.
    """

    def __init__(self, config: TransformerConfig, bidirectional: bool) -> None:
        super().__init__()
        self.config, self.bidirectional = config, bidirectional

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        return x, None


class LearnedPositions(StackPositions):
    """Table of `max_length` learned vectors, which are added to the embeddings.

    The vectors are initially N(0, 1/width).
    """

    def __init__(self, config: TransformerConfig, bidirectional: bool) -> None:
        super().__init__(config, bidirectional)
        self.table = VectorTable(config.max_length, config.width, std=config.width**-0.5)

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Add the vectors of the positions `index` (batch or 1, length) to x."""
        if past + x.shape[1] > self.table.num_embeddings:
            raise ValueError(
                f"input of length {past + x.shape[1]} exceeds max_length "
                f"({self.table.num_embeddings})"
            )
        return x + self.table(index), None


class SinusoidalPositions(StackPositions):
    """Sines and cosines that are added to the embeddings (arXiv 1706.03762, section 3.5).

    The wavelengths start at 2 pi and stay below 10000 * 2 pi. As in Marian, all sines come before
    all cosines. The Transformer paper, in contrast, interleaves sines and cosines.
    """

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        return x + sinusoids(index, self.config.width).type_as(x), None


class RotaryTable(StackPositions):
    """Angles by which queries and keys are rotated (arXiv 2104.09864)."""

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return x, and cosines and sines in a tensor (2, batch or 1, 1, length, head width)."""
        width, base = self.config.head_width, self.config.rotary_base
        pairs = torch.arange(0, width, 2, device=x.device, dtype=torch.float32)
        angles = index[:, None, :, None].float() * base ** (-pairs / width)
        angles = torch.cat((angles, angles), dim=-1)
        return x, torch.stack((angles.cos(), angles.sin()))


class T5Table(StackPositions):
    """Learned bias per head and distance bucket (arXiv 1910.10683, section 2.1).

    An encoder has 16 buckets for earlier positions and 16 buckets for later positions. A decoder
    has 32 buckets, all for earlier positions. In each direction, half of the buckets are for the
    shortest distances, one distance per bucket. Each of the other buckets covers a range of
    distances. The limits of these ranges are spaced logarithmically up to distance 128.
    """

    buckets = 32
    furthest = 128

    def __init__(self, config: TransformerConfig, bidirectional: bool) -> None:
        super().__init__(config, bidirectional)
        self.bias = VectorTable(self.buckets, config.heads, std=0.0)

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return x and the bias, (1, heads, query length, key length)."""
        keys = torch.arange(past + x.shape[1], device=x.device)
        distance = keys[None] - keys[past:, None]
        return x, self.bias(self.bucket(distance)).permute(2, 0, 1)[None].to(x.dtype)

    def bucket(self, distance: Tensor) -> Tensor:
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


class AlibiTable(StackPositions):
    """ALiBi's bias: minus each head's slope times the distance to the key (arXiv 2108.12409)."""

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return x and the bias, (1, heads, query length, key length)."""
        keys = torch.arange(past + x.shape[1], device=x.device)
        distance = (keys[None] - keys[past:, None]).abs()
        slope = slopes(self.config.heads, x.device)[:, None, None]
        return x, -(slope * distance)[None].to(x.dtype)


def slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """Return the heads' slopes, (heads,).

    If the number of heads is a power of two, the slopes are a geometric sequence from 2 ** (-8 /
    heads) to 2 ** -8. For any other number of heads, let n be the next lower power of two. The
    first n heads have the slopes of a model with n heads. The remaining heads have the first,
    third, fifth, ... slope of a model with 2n heads.
    """
    below = 1 << (heads.bit_length() - 1)
    head = torch.arange(heads, device=device)
    power = torch.where(head < below, 8 * (head + 1), 8 * (head - below) + 4) / below
    return 2**-power


class TransformerXLTable(StackPositions):
    """Sinusoids of all distances between keys and queries (arXiv 1901.02860, section 3.3)."""

    def forward(self, x: Tensor, index: Tensor, past: int) -> tuple[Tensor, Tensor | None]:
        """Return x and the sinusoids of all distances, (key length + query length, width).

        The first row is for the largest distance, from the last query to the first key. From row to
        row, the distance falls by 1. The last row belongs to no pair of query and key, but `shift`
        needs it.
        """
        queries, keys = x.shape[1], past + x.shape[1]
        distance = torch.arange(keys - 1, -queries - 1, -1, device=x.device)
        return x, sinusoids(distance, self.config.width).to(x.dtype)


class GridEncoding(nn.Module):
    """Base class of modules that encode positions on a grid, one module per stack."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        assert config.grid is not None
        self.config, self.grid = config, config.grid


class GridIndex(GridEncoding):
    """Row number in the bias table for each pair of query and key on a grid."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the bias table's row numbers (length, length) for x (batch, length, width)."""
        check_length(x, self.grid)
        return relative_index(self.grid, x.device)


class SharedGridBias(GridIndex):
    """BEiT's relative bias, with one table for all layers, initially 0 (arXiv 2106.08254).

    Each head has a bias for each relative position.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.bias = VectorTable(bias_rows(self.grid), config.heads, std=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the bias (1, heads, length, length) for the input x (batch, length, width)."""
        return self.bias(super().forward(x)).permute(2, 0, 1)[None].to(x.dtype)


class GridRotaryTable(GridEncoding):
    """Rotary angles on a grid, as in EVA-02.

    Half of each head's features are rotated by angles from the position's row, and the other half
    by angles from its column. Row and column indices are rescaled to the size of `reference_grid`
    (arXiv 2303.11331).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the cosines and sines (2, 1, 1, length, head width) for the input x."""
        check_length(x, self.grid)
        bands, reference = self.config.head_width // 4, self.config.reference_grid
        steps = torch.arange(bands, device=x.device, dtype=torch.float32)
        frequency = self.config.rotary_base ** (-steps / bands)
        row, column = places(self.grid, x.device)
        row = row * ((reference or self.grid.rows) / self.grid.rows)
        column = column * ((reference or self.grid.columns) / self.grid.columns)
        angles = torch.cat((row[:, None] * frequency, column[:, None] * frequency), dim=-1)
        angles = F.pad(angles.repeat(1, 2), (0, 0, self.grid.prefix, 0))[None, None]
        return torch.stack((angles.cos(), angles.sin()))


def check_length(x: Tensor, grid: Grid) -> None:
    if x.shape[1] != grid.length:
        raise ValueError(
            f"input length {x.shape[1]} differs from the grid's {grid.length} "
            f"({grid.prefix} + {grid.rows} x {grid.columns})"
        )


def places(grid: Grid, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the row and the column of each place on the grid, both (rows * columns,)."""
    row = torch.arange(grid.rows, device=device).repeat_interleave(grid.columns)
    return row, torch.arange(grid.columns, device=device).repeat(grid.rows)


def bias_rows(grid: Grid) -> int:
    """Return the number of rows of a bias table.

    The table has a row for each relative position. If the grid has a prefix, three rows follow: for
    attention from the prefix to the grid, from the grid to the prefix, and within the prefix.
    """
    return (2 * grid.rows - 1) * (2 * grid.columns - 1) + 3 * (grid.prefix > 0)


def relative_index(grid: Grid, device: torch.device) -> Tensor:
    """Return the row number in the bias table for each pair of query and key, (length, length).

    As in BEiT, table rows are sorted by the row difference, then by the column difference. A
    difference is the query's row or column on the grid minus the key's. The last three table rows
    are for a prefix (see `bias_rows`).
    """
    row, column = places(grid, device)
    down = row[:, None] - row + grid.rows - 1
    right = column[:, None] - column + grid.columns - 1
    index = down * (2 * grid.columns - 1) + right
    if not grid.prefix:
        return index
    first, last = grid.prefix, bias_rows(grid) - 1
    index = F.pad(index, (first, 0, first, 0), value=last - 2)
    index[first:, :first] = last - 1
    index[:first, :first] = last
    return index


class LayerPositions(nn.Module):
    """Module of a position encoding that runs in the attention of a layer.

    `forward` may change queries and keys, or return a bias for the attention logits. This base
    class does nothing.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, shared: Any) -> Logits:
        return query, key, None


class RotaryLogits(LayerPositions):
    """Rotation of queries and keys in a layer."""

    def forward(self, query: Tensor, key: Tensor, shared: Tensor) -> Logits:
        cosine, sine = shared.to(query.dtype)
        return rotate(query, cosine, sine), rotate(key, cosine, sine), None


class BiasedLogits(LayerPositions):
    """Bias on the attention logits that is the same in every layer."""

    def forward(self, query: Tensor, key: Tensor, shared: Tensor) -> Logits:
        return query, key, shared


class GridBiasLogits(LayerPositions):
    """BEiT's relative bias, with a separate table for each layer, initially 0."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        assert config.grid is not None
        self.bias = VectorTable(bias_rows(config.grid), config.heads, std=0.0)

    def forward(self, query: Tensor, key: Tensor, shared: Tensor) -> Logits:
        return query, key, self.bias(shared).permute(2, 0, 1)[None].to(query.dtype)


class TransformerXLLogits(LayerPositions):
    """Transformer-XL's relative positions in a layer, as in ESPnet.

    The logit of query q and key k is (q + u) k + (q + v) W r, where r are sinusoids of the distance
    (arXiv 1901.02860, section 3.3). The matrix W is learned, and differs from layer to layer. Each
    head has vectors u and v, with Xavier uniform initialisation as in ESPnet. The function `shift`
    assigns the values of (q + v) W r to the keys without a copy.
    """

    sublayer: Sublayer = "self_attention"

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        slices = [("position", config.attention_width)]
        self.position_proj = Projection(config.width, slices, bias=False)
        self.content_bias = nn.Parameter(torch.empty(config.heads, config.head_width))
        self.position_bias = nn.Parameter(torch.empty(config.heads, config.head_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.content_bias)
        nn.init.xavier_uniform_(self.position_bias)

    def forward(self, query: Tensor, key: Tensor, shared: Tensor) -> Logits:
        """Return the queries plus u, the keys, and the bias (batch, heads, queries, keys)."""
        content, place = self.content_bias[:, None], self.position_bias[:, None]
        distances = self.position_proj(shared).unflatten(-1, self.content_bias.shape)
        scaled = (query + place.type_as(query)) * query.shape[-1] ** -0.5
        bias = shift(scaled @ distances.permute(1, 2, 0).type_as(scaled))
        return query + content.type_as(query), key, bias


def shift(products: Tensor) -> Tensor:
    """Turn values per distance (..., T, S + T) into values per key (..., T, S), as a view.

    `products[..., i, T - 1 - i + s]` is the value of query i and key s.
    """
    queries = products.shape[-2]
    keys = products.shape[-1] - queries
    slanted = products.flatten(-2)[..., queries - 1 : -1].unflatten(-1, (queries, -1))
    return slanted[..., :keys]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair of features (i, i + half) of the last dimension."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def sinusoids(index: Tensor, width: int) -> Tensor:
    """Return sines and then cosines of positions, in fp32 (..., width).

    If the width is odd, the last feature is 0.
    """
    half = width // 2
    steps = torch.arange(half, device=index.device, dtype=torch.float32)
    frequency = 10000.0 ** (-steps / max(half, 1))
    angles = index[..., None].float() * frequency
    return F.pad(torch.cat((angles.sin(), angles.cos()), dim=-1), (0, width - 2 * half))


ENCODINGS: dict[str, tuple[type[StackPositions], type[LayerPositions]]] = {
    "none": (StackPositions, LayerPositions),
    "learned": (LearnedPositions, LayerPositions),
    "sinusoidal": (SinusoidalPositions, LayerPositions),
    "rotary": (RotaryTable, RotaryLogits),
    "t5": (T5Table, BiasedLogits),
    "transformer_xl": (TransformerXLTable, TransformerXLLogits),
    "alibi": (AlibiTable, BiasedLogits),
}
"""Classes by the field `positions`: the first for the stack, the second for a layer."""
GRID_ENCODINGS: dict[str, tuple[type[GridEncoding], type[LayerPositions]]] = {
    "relative_bias": (GridIndex, GridBiasLogits),
    "shared_relative_bias": (SharedGridBias, BiasedLogits),
    "rotary": (GridRotaryTable, RotaryLogits),
}
"""Classes by the field `grid_positions`: the first for the stack, the second for a layer."""


def build_positions(config: TransformerConfig, bidirectional: bool) -> StackPositions:
    return ENCODINGS[config.positions][0](config, bidirectional)


def build_grid_positions(config: TransformerConfig, bidirectional: bool) -> GridEncoding | None:
    """Return the grid encoding's module for the stack, or None if there is no grid encoding.

    The module runs once per forward pass, before the first layer.

    Raises:
        ValueError: If a decoder has a grid encoding.
    """
    if config.grid_positions == "none" or config.grid is None:
        return None
    if not bidirectional:
        raise ValueError("grid_positions must be 'none' in a decoder: only images have a grid")
    return GRID_ENCODINGS[config.grid_positions][0](config)


def build_layer_positions(config: TransformerConfig) -> LayerPositions:
    usual = ENCODINGS[config.positions]
    return GRID_ENCODINGS.get(config.grid_positions, usual)[1](config)


def resize_positions(
    state: Mapping[str, Tensor], old: TransformerConfig, new: TransformerConfig
) -> dict[str, Tensor]:
    """Return a model's tensors for another grid.

    Learned positions and relative biases are interpolated (bicubic). A new model with a bias per
    layer can start from an old model with a shared bias. Each layer of the new model gets the
    shared bias, as in BEiT's fine-tuning.

    Args:
        state: Tensors of the old model by name. The old model must be a single stack.
        old: Configuration of the old model.
        new: Configuration of the new model. The number of prefix vectors must be as in `old`, but
            the grid, `max_length` and `grid_positions` may differ.

    Raises:
        ValueError: If a configuration has no grid.
    """
    before, after = old.grid, new.grid
    if before is None or after is None:
        raise ValueError("only image models have positions on a grid")
    made = dict(state)
    for name, tensor in state.items():
        if name.endswith(ABSOLUTE) and old.positions == "learned":
            table = resize_table(tensor[: before.length], before, after)
            # Rows beyond the grid are never read.
            made[name] = F.pad(table, (0, 0, 0, new.max_length - after.length))
        elif name.endswith(OWN_BIAS) and old.grid_positions == "relative_bias":
            made[name] = resize_bias(tensor, before, after)
        elif name.endswith(SHARED_BIAS):
            bias = resize_bias(made.pop(name), before, after)
            stack, places = name.removesuffix(SHARED_BIAS), [SHARED_BIAS]
            if new.grid_positions == "relative_bias":
                layers = range(new.depth("encoder").layers)
                places = [f"layers.{layer}.self_attention.{OWN_BIAS}" for layer in layers]
            made |= {f"{stack}{place}": bias.clone() for place in places}
    return made


def resize_table(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """Interpolate a table of position vectors from (old.length, width) to (new.length, width).

    As in BEiT's code and in Hugging Face's transformers, interpolation is bicubic without aligned
    corners and without antialiasing. Prefix vectors are copied, so both grids must have the same
    number of prefix vectors. The dtype stays the same.
    """
    places = bicubic(table[old.prefix :], (old.rows, old.columns), (new.rows, new.columns))
    return torch.cat((table[: old.prefix], places))


def resize_bias(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """Interpolate a table of relative biases (rows, heads) to another grid.

    Rows are in the order of `relative_index`. The three rows for a prefix are copied. Either both
    grids have a prefix, or neither has one.
    """
    shapes = [(2 * grid.rows - 1, 2 * grid.columns - 1) for grid in (old, new)]
    count = shapes[0][0] * shapes[0][1]
    return torch.cat((bicubic(table[:count], *shapes), table[count:]))


def bicubic(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    if old == new:
        return table
    image = table.float().unflatten(0, old).permute(2, 0, 1)[None]
    resized = F.interpolate(image, size=new, mode="bicubic", align_corners=False)
    return resized[0].flatten(1).t().to(table.dtype)
