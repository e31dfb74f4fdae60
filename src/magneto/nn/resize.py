"""Positions of a grid for another grid: learned at one resolution of images, used at another."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.nn.config import Grid, TransformerConfig
from magneto.nn.grid_position import bias_rows

# The ends of names of tensors.
ABSOLUTE = "position_embedding.table.weight"
SHARED_BIAS = "grid_positions.bias.weight"
OWN_BIAS = "attention.positions.bias.weight"


def resize_positions(
    state: Mapping[str, Tensor], old: TransformerConfig, new: TransformerConfig
) -> dict[str, Tensor]:
    """Return a model's tensors for the same model over another grid.

    Learned positions and relative biases are interpolated (bicubic); what is no position is
    returned as it is. So a model pre-trained at 224 x 224 pixels is fine-tuned at 384 x 384, or
    segments at 512 x 512. Where only the new model has a bias per layer, each begins as the shared
    one, as in BEiT's fine-tuning.

    Args:
        state: Tensors by name, of a model with one stack over the grid.
        old: Configuration of the model they come from.
        new: Of the model they are for; of the rest, `max_length` and a bias per layer may differ.

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
        elif name.endswith(OWN_BIAS) and old.grid_positions == "relative_bias":
            made[name] = resize_bias(tensor, before, after)
        elif name.endswith(SHARED_BIAS):
            bias = resize_bias(made.pop(name), before, after)
            stack = name.removesuffix(SHARED_BIAS)
            made |= {f"{stack}{place}": bias.clone() for place in bias_places(new)}
    return made


def bias_places(config: TransformerConfig) -> list[str]:
    """Return the names of a stack's tables of relative biases."""
    if config.grid_positions != "relative_bias":
        return [SHARED_BIAS]
    layers = config.depth("encoder").layers
    return [f"layers.{layer}.self_attention.{OWN_BIAS}" for layer in range(layers)]


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


def resize_bias(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """Interpolate a table of relative biases to another grid: bicubic in differences of places.

    Args:
        table: (rows of the table, heads), in the order of `grid_position.relative_index`.
        old: Its grid.
        new: The grid wanted.

    Returns:
        (rows of the new table, heads); the rows of vectors before the grid stay as they are.

    Raises:
        ValueError: If one has vectors before the grid and the other none, or the table does not fit
            the old grid.
    """
    if (old.prefix > 0) != (new.prefix > 0):
        raise ValueError(f"{old.prefix} vectors before the grid there, {new.prefix} here")
    if len(table) != bias_rows(old):
        raise ValueError(f"{len(table)} biases are none of {old.rows} x {old.columns} places: "
                         f"they have {bias_rows(old)}")  # fmt: skip
    shapes = [(2 * grid.rows - 1, 2 * grid.columns - 1) for grid in (old, new)]
    count = shapes[0][0] * shapes[0][1]
    return torch.cat((bicubic(table[:count], *shapes), table[count:]))


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
