"""Places on a grid, as of images: BEiT's relative position bias, rotary positions in 2-D.

They act in attention, beside what `positions` adds to the embeddings, and have the same two halves
(see `magneto.nn.position`): the stack's half runs once per forward pass, the layer's half in each
attention. Vectors before the grid (a class token) have no place in it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from magneto.nn.config import Grid, TransformerConfig
from magneto.nn.embedding import Table


class NoGridPositions(nn.Module):
    """The input is a sequence, or only `positions` tells its places."""

    def forward(self, x: Tensor, shared: Tensor | None) -> Tensor | None:
        """Return what the layers share already."""
        return shared


class GridIndex(nn.Module):
    """Shares which row of a layer's table of biases belongs to each query and key."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, x: Tensor, shared: None) -> Tensor:
        """Return numbers of rows, (length, length), for x, (batch, length, width)."""
        check_length(x, self.grid)
        return relative_index(self.grid, x.device)


class SharedGridBias(nn.Module):
    """Shares one learned bias per head and place of the key seen from the query (arXiv 2106.08254).

    Zero at first. Every layer uses the same, as in BEiT's pre-training.
    """

    def __init__(self, config: TransformerConfig, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.bias = Table(bias_rows(grid), config.heads, std=0.0)

    def forward(self, x: Tensor, shared: None) -> Tensor:
        """Return the bias (1, heads, length, length) for x, (batch, length, width)."""
        check_length(x, self.grid)
        index = relative_index(self.grid, x.device)
        return self.bias(index).permute(2, 0, 1)[None].to(x.dtype)


class GridRotaryTable(nn.Module):
    """Shares angles by row for one half of each head's pairs, by column for the other (EVA-02).

    Vectors before the grid are not turned. On a grid of another size than `reference_grid`, the
    places are stretched to it (arXiv 2303.11331, its code).
    """

    def __init__(self, config: TransformerConfig, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.head_width = config.head_width
        self.base = config.rotary_base
        self.reference = config.reference_grid

    def forward(self, x: Tensor, shared: None) -> Tensor:
        """Return (2, 1, 1, length, head width) of cosines and sines for x."""
        check_length(x, self.grid)
        bands = self.head_width // 4
        steps = torch.arange(bands, device=x.device, dtype=torch.float32)
        frequency = self.base ** (-steps / bands)
        row, column = places(self.grid, x.device)
        row = row * ((self.reference or self.grid.rows) / self.grid.rows)
        column = column * ((self.reference or self.grid.columns) / self.grid.columns)
        angles = torch.cat((row[:, None] * frequency, column[:, None] * frequency), dim=-1)
        angles = nn.functional.pad(angles.repeat(1, 2), (0, 0, self.grid.prefix, 0))[None, None]
        return torch.stack((angles.cos(), angles.sin()))


def check_length(x: Tensor, grid: Grid) -> None:
    """Raise ValueError if x, (batch, length, width), is no grid of this size."""
    if x.shape[1] != grid.length:
        raise ValueError(
            f"input of length {x.shape[1]} is no grid of {grid.rows} x {grid.columns} after "
            f"{grid.prefix}, which has {grid.length}"
        )


def places(grid: Grid, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return row and column of each place on the grid, each (rows * columns)."""
    row = torch.arange(grid.rows, device=device).repeat_interleave(grid.columns)
    return row, torch.arange(grid.columns, device=device).repeat(grid.rows)


def bias_rows(grid: Grid) -> int:
    """Return the rows of a table of biases: one per difference of places, three for the prefix."""
    return (2 * grid.rows - 1) * (2 * grid.columns - 1) + 3 * (grid.prefix > 0)


def relative_index(grid: Grid, device: torch.device) -> Tensor:
    """Return the row of a table of biases for each query and key, (length, length).

    In BEiT's order: differences of rows, query minus key, then of columns; then the prefix's
    queries, its keys, and both.
    """
    row, column = places(grid, device)
    down = row[:, None] - row + grid.rows - 1
    right = column[:, None] - column + grid.columns - 1
    index = down * (2 * grid.columns - 1) + right
    if not grid.prefix:
        return index
    first, last = grid.prefix, bias_rows(grid) - 1
    index = nn.functional.pad(index, (first, 0, first, 0), value=last - 2)
    index[first:, :first] = last - 1
    index[:first, :first] = last
    return index


def build_grid_positions(config: TransformerConfig, bidirectional: bool) -> nn.Module:
    """Build the stack's half of the configured kind.

    Raises:
        ValueError: For a decoder, which reads a sequence.
    """
    grid = config.grid
    if config.grid_positions == "none" or grid is None:
        return NoGridPositions()
    if not bidirectional:
        raise ValueError("only an encoder reads a grid: a decoder has no grid_positions")
    kinds = {
        "relative_bias": lambda: GridIndex(grid),
        "shared_relative_bias": lambda: SharedGridBias(config, grid),
        "rotary": lambda: GridRotaryTable(config, grid),
    }
    return kinds[config.grid_positions]()
