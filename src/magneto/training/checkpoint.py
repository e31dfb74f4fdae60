"""What a checkpoint holds, and how it comes back: piece by piece, on any number of ranks.

A checkpoint is a directory of safetensors files, JSON, and a manifest of sizes and checksums; it is
complete or not there, and nothing in it is ever unpickled. One process and "ddp" write whole
tensors. Of a sharded run every rank writes the rows it has, and reads the rows it needs, so that
no process holds the whole model.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magneto.files import read_object
from magneto.training.ema import WeightAverage
from magneto.training.sharding import Piece, piece_of, unwrap
from magneto.weights import (
    StoredTensor,
    check_finite,
    find_weights,
    list_checkpoints,
    open_tensors,
    step_of,
)

OPTIMIZER = "optimizer"
AVERAGE = "ema"
STATE = "state.json"


def model_pieces(model: nn.Module, average: WeightAverage | None = None) -> dict[str, Piece]:
    """Return this rank's pieces of parameters and saved buffers; a tied one under its first name.

    Args:
        model: As the loop has it, sharded or not.
        average: Whose weights stand in the place of the model's, if it is given.
    """
    inner = unwrap(model)
    saved = inner.state_dict(keep_vars=True)
    seen: dict[int, str] = {}
    for name, tensor in saved.items():
        seen.setdefault(id(tensor), name)
    pieces = {name: piece_of(saved[name]) for name in seen.values()}
    if average is not None:
        for (name, _), tensor in zip(inner.named_parameters(), average.average, strict=True):
            pieces[name] = replace(pieces[name], tensor=tensor)
    return pieces


@torch.no_grad()
def fill(pieces: Mapping[str, Piece], stored: Mapping[str, StoredTensor], where: object) -> None:
    """Read stored tensors into the memory of pieces; `where` names them in an error.

    Raises:
        ValueError: If names or shapes differ.
    """
    missing, surplus = sorted(set(pieces) - set(stored)), sorted(set(stored) - set(pieces))
    wrong = [
        f"{name} is {stored[name].shape}, the model has {pieces[name].shape}"
        for name in sorted(set(pieces) & set(stored))
        if stored[name].shape != pieces[name].shape
    ]
    if missing or surplus or wrong:
        problem = wrong or [f"missing {missing[:3]}, unexpected {surplus[:3]}"]
        raise ValueError(f"{where} holds another model's weights: {problem[0]}")
    for name, piece in pieces.items():
        if piece.tensor.numel():
            piece.tensor.copy_(stored[name].rows(piece.start, piece.stop))


def optimizer_pieces(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Piece]:
    """Return this rank's pieces of the optimizer's tensors, as "exp_avg/decoder.head.weight"."""
    names = {id(parameter): name for name, parameter in unwrap(model).named_parameters()}
    return {
        f"{kind}/{names[id(parameter)]}": piece_of(torch.as_tensor(value))
        for parameter, values in optimizer.state.items()
        for kind, value in values.items()
    }


def fill_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, stored: dict[str, StoredTensor]
) -> None:
    """Give an optimizer its stored tensors; rates and decays stay as they are set.

    Raises:
        ValueError: If a tensor is of a parameter that the model has not.
    """
    names = {name: parameter for name, parameter in unwrap(model).named_parameters()}
    order = [id(p) for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in stored.items():
        kind, name = key.split("/", 1)
        if name not in names or id(names[name]) not in order:
            raise ValueError(f"the optimizer's {key} is of a parameter that is not trained")
        of_rows = tensor.shape and tensor.shape == tuple(names[name].shape)
        empty = torch.zeros_like(names[name].detach()) if of_rows else torch.zeros(tensor.shape)
        fill({key: piece_of(empty)}, {key: tensor}, "the optimizer's file")
        state.setdefault(order.index(id(names[name])), {})[kind] = empty
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def load_checkpoint(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Put a checkpoint into model and optimizer; return its state. Every rank calls this."""
    fill(model_pieces(model), open_tensors(directory), directory)
    fill_optimizer(model, optimizer, open_tensors(directory, OPTIMIZER))
    return read_object(directory / STATE)


def load_weights(model: nn.Module, run: Path, which: str = "auto") -> Path:
    """Load a run's weights into a model in one process.

    Args:
        model: Of the run's shape.
        run: The run's directory.
        which: As in `magneto.weights.find_weights`.

    Returns:
        The directory they came from.

    Raises:
        FileNotFoundError: If the run has no such weights.
        ValueError: If they are damaged, another model's, or not finite.
    """
    directory = find_weights(run, which)
    fill(model_pieces(model), open_tensors(directory), directory)
    check_finite(model.state_dict(), directory)
    return directory


def forget_old(run: Path, whole: list[Path], keep: int) -> None:
    """Remove what is older than the newest `keep` undamaged checkpoints.

    Args:
        run: The run's directory.
        whole: The undamaged ones; those removed are taken from the list.
        keep: How many stay. A damaged one is not counted.
    """
    whole.sort(key=step_of)
    if len(whole) < keep:
        return
    del whole[:-keep]
    for directory in list_checkpoints(run):
        if step_of(directory) < step_of(whole[0]):
            shutil.rmtree(directory)


def average_weights(pieces: dict[str, Piece], directories: list[Path]) -> dict[str, Piece]:
    """Return this rank's pieces of the mean of several directories' weights.

    Args:
        pieces: The model's, which say what this rank has of each tensor.
        directories: Of weights; summed in float64.
    """
    held = [open_tensors(directory) for directory in directories]
    averaged = {}
    for name, piece in pieces.items():
        total = torch.zeros(piece.tensor.shape, dtype=torch.float64)
        if piece.tensor.numel():
            for stored in held:
                total += stored[name].rows(piece.start, piece.stop).double()
        averaged[name] = replace(piece, tensor=(total / len(held)).to(piece.tensor.dtype))
    return averaged
