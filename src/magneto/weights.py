"""Tensors in a run's directory: which there are, which are undamaged, and how they are read.

The tensors of one kind ("model", "optimizer", "ema") are in one safetensors file, or, of a sharded
run, in a file per rank with an index of who has which rows. Either way they are read by rows, so
that no process need hold a whole model, and any number of processes reads what any number wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from magneto.files import Damaged, check_directory, read_object

MODEL = "model"
# Weights that a run keeps besides those of its checkpoints.
NAMED = ("best", "final", "averaged")
STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in files.

    Attributes:
        name: Its name in them.
        shape: Of the whole.
        pieces: (open file, first row, row after the last) of each piece, in order.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[Any, int, int], ...]

    def read(self) -> Tensor:
        """Return all of it."""
        if len(self.pieces) == 1:
            return self.pieces[0][0].get_tensor(self.name)
        return self.rows(0, self.shape[0])

    def rows(self, start: int, stop: int) -> Tensor:
        """Return its rows from `start` up to, and without, `stop`; a scalar is its only row."""
        if not self.shape:
            return self.read()
        parts = [
            file.get_slice(self.name)[max(start, first) - first : min(stop, after) - first]
            for file, first, after in self.pieces
            if first < stop and start < after
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True)
class HeldTensor:
    """A tensor in memory, in the place of an open file that has it."""

    tensor: Tensor

    def get_tensor(self, name: str) -> Tensor:
        """Return it."""
        return self.tensor

    def get_slice(self, name: str) -> Tensor:
        """Return it, to be cut by rows."""
        return self.tensor


def in_memory(name: str, tensor: Tensor) -> StoredTensor:
    """Return a tensor as those that are read from files."""
    rows = len(tensor) if tensor.ndim else 1
    return StoredTensor(name, tuple(tensor.shape), ((HeldTensor(tensor), 0, rows),))


def open_tensors(directory: Path, kind: str = MODEL) -> dict[str, StoredTensor]:
    """Return the tensors of one kind in a directory by name; nothing is read yet."""
    single = directory / f"{kind}.safetensors"
    if single.is_file():
        file = safe_open(single, framework="pt")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        return {
            name: StoredTensor(name, shape, ((file, 0, shape[0] if shape else 1),))
            for name, shape in shapes.items()
        }
    index = read_object(index_path(directory, kind))
    names = {piece["file"] for entry in index.values() for piece in entry["pieces"]}
    files = {name: safe_open(directory / name, framework="pt") for name in sorted(names)}
    return {
        name: StoredTensor(
            name,
            tuple(entry["shape"]),
            tuple((files[piece["file"]], *piece["rows"]) for piece in entry["pieces"]),
        )
        for name, entry in index.items()
    }


def index_path(directory: Path, kind: str) -> Path:
    """Return the file that says which rank's file has which rows of tensors of one kind."""
    return directory / f"{kind}.index.json"


def has_tensors(directory: Path, kind: str = MODEL) -> bool:
    """Return whether a directory has tensors of one kind."""
    return (directory / f"{kind}.safetensors").is_file() or index_path(directory, kind).is_file()


def step_directory(folder: Path, step: int) -> Path:
    """Return where a folder (`checkpoints`, `candidates`) has what was saved after a step."""
    return folder / f"step-{step:08d}"


def step_of(directory: Path) -> int:
    """Return the step that a directory of `list_steps` is named after."""
    return int(directory.name.split("-")[1])


def list_steps(folder: Path) -> list[Path]:
    """List what a folder has of steps, the earliest first; other names are left out."""
    found = [path for path in folder.glob("step-*") if STEP.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of)


def list_checkpoints(run: Path) -> list[Path]:
    """List the checkpoints of a run, damaged ones too, oldest first."""
    return list_steps(run / "checkpoints")


def undamaged(directories: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Return those that are as they were written, and what is wrong with each other one."""
    whole, problems = [], []
    for directory in directories:
        try:
            check_directory(directory)
            whole.append(directory)
        except Damaged as error:
            problems.append(str(error))
    return whole, problems


def find_weights(run: Path, which: str = "auto") -> Path:
    """Return the directory of the named weights of a run, seen to be undamaged.

    Args:
        run: The run's directory.
        which: "best", "final", "averaged", "last" (checkpoint), a step's number, or "auto": the
            first there is of best, final and last.

    Raises:
        FileNotFoundError: If there are none; says which there are.
        Damaged: If they are not as they were written; says which undamaged ones there are.
    """
    checkpoints = list_checkpoints(run)
    there = {name: run / name for name in NAMED if (run / name).is_dir()}
    there |= {str(step_of(path)): path for path in reversed(checkpoints)}
    if checkpoints:
        there["last"] = checkpoints[-1]
    order = ("best", "final", "last") if which == "auto" else (which,)
    found = next((there[name] for name in order if name in there), None)
    if found is None and not run.is_dir():
        raise FileNotFoundError(f"no run in {run}: there is no such folder")
    if found is None:
        none = "it diverged" if (run / "diverged").is_dir() else "it has none yet"
        has = f"it has {', '.join(there)}" if there else none
        named = "" if which == "auto" else f"{which} "
        raise FileNotFoundError(f"no {named}weights in {run}: {has}")
    try:
        check_directory(found)
    except Damaged as error:
        others = {path: name for name, path in there.items() if name != "last" and path != found}
        whole = [others[path] for path in undamaged(others)[0]]
        hint = "there are no undamaged ones"
        if whole:
            hint = f"where a command takes --weights {whole[0]}: undamaged are {', '.join(whole)}"
        raise Damaged(f"{error}; {hint}") from error
    return found


def check_finite(state: Mapping[str, Tensor], where: object) -> None:
    """See that weights can be computed with; `where` names them in an error.

    Raises:
        Damaged: If one is not a number or infinite; names the first tensor with such values.
    """
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            wrong = tensor.numel() - int(tensor.isfinite().sum())
            raise Damaged(f"{where}: {wrong:,} of {tensor.numel():,} values of {name} are not "
                          "finite (NaN or infinity); nothing can be computed with these weights, "
                          "use others")  # fmt: skip
