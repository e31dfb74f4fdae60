"""Positions of a grid for another grid: learned at one resolution of images, used at another."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.nn.config import Grid, TransformerConfig

ABSOLUTE = "position_embedding.table.weight"


def resize_positions(
    state: Mapping[str, Tensor], old: TransformerConfig, new: TransformerConfig
) -> dict[str, Tensor]:
    """Return a model's tensors for the same model over another grid.

    Learned positions are interpolated (bicubic); what is no position is returned as it is. So a
    model pre-trained at 224 x 224 pixels is fine-tuned at 384 x 384, or segments at 512 x 512.

    Args:
        state: Tensors by name, of a model with one stack over the grid.
        old: Configuration of the model they come from.
        new: Of the model they are for; it differs in the grid and in `max_length` alone.

    Raises:
        ValueError: If one has no grid, or another number of vectors before it.
    """
    before, after = grid_of(old), grid_of(new)
    made = dict(state)
    for name, tensor in state.items():
        if name.endswith(ABSOLUTE) and old.positions == "learned":
            table = resize_table(tensor[: before.length], before, after)
            # Rows beyond the grid are never read.
            made[name] = F.pad(table, (0, 0, 0, new.max_length - after.length))
    return made


def resize_table(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """Interpolate one vector per place to another grid; those before the grid stay as they are.

    As BEiT's authors and transformers do it: bicubic, corners not aligned, no antialiasing.

    Args:
        table: (old.length, width).
        old: Its grid.
        new: The grid wanted.

    Returns:
        (new.length, width), of the same dtype.

    Raises:
        ValueError: If the two have another number of vectors before the grid, or the table does not
            fit the old one.
    """
    if old.prefix != new.prefix:
        raise ValueError(f"{old.prefix} vectors before the grid there, {new.prefix} here")
    if len(table) != old.length:
        raise ValueError(
            f"{len(table)} positions are no {old.prefix} + {old.rows} x {old.columns} of a grid"
        )
    places = bicubic(table[old.prefix :], (old.rows, old.columns), (new.rows, new.columns))
    return torch.cat((table[: old.prefix], places))


def bicubic(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Interpolate (rows * columns, width) from one number of rows and columns to another."""
    if old == new:
        return table
    image = table.float().unflatten(0, old).permute(2, 0, 1)[None]
    resized = F.interpolate(image, size=new, mode="bicubic", align_corners=False)
    return resized[0].flatten(1).t().to(table.dtype)


def grid_of(config: TransformerConfig) -> Grid:
    """Return a configuration's grid.

    Raises:
        ValueError: If it has none.
    """
    if config.grid is None:
        raise ValueError("only a model of images has positions on a grid")
    return config.grid
