"""Weights in a run's directory: search, checks and reading.

A directory has one safetensors file for each kind of tensors ("model", "optimizer", "ema"). In
a sharded run, each kind has several files and an index. The number of processes may change between
writing and reading.
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

from magneto.files import DamagedError, check_directory, read_object

MODEL, AVERAGE = "model", "ema"
# Weights of a run besides its checkpoints.
NAMED = ("best", "final", "averaged")
STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class StoredTensor:
    """Tensor in one or more files.

    `pieces` contains tuples (open file, start, stop) for the rows `start` to `stop - 1`.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[Any, int, int], ...]

    def read(self) -> Tensor:
        """Return the whole tensor."""
        if len(self.pieces) == 1:
            return self.pieces[0][0].get_tensor(self.name)
        return self.rows(0, self.shape[0])

    def rows(self, start: int, stop: int) -> Tensor:
        """Return the rows `start` to `stop - 1`; for a scalar, return the scalar."""
        if not self.shape:
            return self.read()
        parts = [
            file.get_slice(self.name)[max(start, first) - first : min(stop, after) - first]
            for file, first, after in self.pieces
            if first < stop and start < after
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def open_tensors(directory: Path, kind: str = MODEL) -> dict[str, StoredTensor]:
    """Return a directory's tensors by name, without loading the values."""
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


def open_weights(directory: Path) -> dict[str, StoredTensor]:
    """Open a directory's averaged weights ("ema") if there are any, else its "model" weights."""
    return open_tensors(directory, AVERAGE if has_tensors(directory, AVERAGE) else MODEL)


def index_path(directory: Path, kind: str) -> Path:
    return directory / f"{kind}.index.json"


def has_tensors(directory: Path, kind: str = MODEL) -> bool:
    """Return whether a directory has the tensors of `kind`, such as "model"."""
    return (directory / f"{kind}.safetensors").is_file() or index_path(directory, kind).is_file()


def step_directory(folder: Path, step: int) -> Path:
    """Return the path of a step's directory in a folder."""
    return folder / f"step-{step:08d}"


def step_of(directory: Path) -> int:
    """Return the step in a directory's name."""
    return int(directory.name.split("-")[1])


def list_steps(folder: Path) -> list[Path]:
    """Return a folder's step directories, ordered by step."""
    found = [path for path in folder.glob("step-*") if STEP.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of)


def list_checkpoints(run: Path) -> list[Path]:
    """Return a run's checkpoints, ordered by step, including damaged ones."""
    return list_steps(run / "checkpoints")


def undamaged(directories: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Return the undamaged directories, and a message for each damaged one."""
    intact, problems = [], []
    for directory in directories:
        try:
            check_directory(directory)
            intact.append(directory)
        except DamagedError as error:
            problems.append(str(error))
    return intact, problems


def find_weights(run: Path, which: str = "auto") -> Path:
    """Check a run's weights for damage, and return their directory.

    Args:
        run: Directory of the run.
        which: Name of the weights: "best", "final", "averaged", "last" (the latest checkpoint) or
            the step of a checkpoint. "auto" takes the first existing of "best", "final" and "last".

    Raises:
        FileNotFoundError: If the weights don't exist. The message lists existing weights.
        DamagedError: If the weights are damaged. The message names undamaged weights of the run.
    """
    checkpoints = list_checkpoints(run)
    available = {name: run / name for name in NAMED if (run / name).is_dir()}
    available |= {str(step_of(path)): path for path in reversed(checkpoints)}
    if checkpoints:
        available["last"] = checkpoints[-1]
    order = ("best", "final", "last") if which == "auto" else (which,)
    found = next((available[name] for name in order if name in available), None)
    if found is None and not run.is_dir():
        raise FileNotFoundError(f"no run in {run}: the folder does not exist")
    if found is None:
        none = (
            "the run diverged"
            if (run / "diverged").is_dir()
            else "training has not saved weights yet"
        )
        has = f"existing weights: {', '.join(available)}" if available else none
        named = "" if which == "auto" else f"{which!r} "
        raise FileNotFoundError(f"no weights {named}in {run} ({has})")
    try:
        check_directory(found)
    except DamagedError as error:
        others = {
            path: name for name, path in available.items() if name != "last" and path != found
        }
        intact = [others[path] for path in undamaged(others)[0]]
        hint = "the run has no undamaged weights"
        if intact:
            hint = f"undamaged weights: {', '.join(intact)} (give --weights {intact[0]})"
        raise DamagedError(f"{error}; {hint}") from error
    return found


def check_finite(state: Mapping[str, Tensor], where: object) -> None:
    """Raise DamagedError if a tensor has a value that is not finite."""
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            wrong = tensor.numel() - int(tensor.isfinite().sum())
            raise DamagedError(f"{where}: {wrong:,} of {tensor.numel():,} values of {name} are not "
                          "finite (NaN or infinity). Use other weights.")  # fmt: skip
