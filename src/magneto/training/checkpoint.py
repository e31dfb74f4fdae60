"""What a checkpoint holds, and how it comes back: piece by piece, on any number of ranks.

A checkpoint is a directory of safetensors files, JSON, and a manifest of sizes and checksums; it is
complete or not there, and nothing in it is ever unpickled. One process and "ddp" write whole
tensors. Of a sharded run every rank writes the rows it has, and reads the rows it needs, so that
no process holds the whole model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from magneto.files import aside_path, fingerprint, process_name, publish, read_object, write_json
from magneto.training.distributed import Piece, World, broadcast_from_main, piece_of, unwrap
from magneto.training.optimizer import WeightAverage
from magneto.weights import (
    StoredTensor,
    check_finite,
    find_weights,
    index_path,
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


Kinds = Mapping[str, Mapping[str, Piece]]
"""Pieces by their tensor's name, by kind ("model", "optimizer"): a file, or a file per rank."""


class Writer:
    """Writes what a run leaves behind. Every rank calls `write`, with the same kinds.

    Args:
        world: The ranks.
        background: Whether to copy the tensors to the CPU's memory and write them on a thread. One
            directory is written at a time: the next one waits for it.
    """

    def __init__(self, world: World, background: bool) -> None:
        self.world = world
        self.background = background
        # A group of its own, on which a thread can wait while training uses the other one.
        self.group = dist.new_group(backend="gloo") if world.world_size > 1 else None
        self.process: str = broadcast_from_main(process_name(), world)
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def write(
        self,
        directory: Path,
        kinds: Kinds,
        state: dict[str, Any],
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a directory.

        Args:
            directory: Appears when it is complete; what stood there is replaced.
            kinds: What this rank holds. Where a kind is sharded every rank of the first copy
                writes its rows, and the main process an index and what all ranks hold.
            state: Plain values, written as JSON.
            after: Called by the main process when the directory is there.

        Raises:
            OSError: If this, or what was begun in the background before, could not be written.
        """
        self.wait()
        if not self.background:
            self._write(directory, kinds, state, after)
            return
        kept = self._copy(kinds)
        job = partial(self._guarded, partial(self._write, directory, kept, state, after))
        self._thread = Thread(target=job, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for what is being written; raise what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # raised again by `wait`
            self._error = error

    def _copy(self, kinds: Kinds) -> Kinds:
        made = {
            kind: {name: replace(p, tensor=copy_to_cpu(p.tensor)) for name, p in pieces.items()}
            for kind, pieces in kinds.items()
        }
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        return made

    def _write(
        self, directory: Path, kinds: Kinds, state: dict[str, Any], after: Callable[[], None]
    ) -> None:
        aside = aside_path(directory, self.process)
        try:
            manifest: dict[str, dict[str, int]] = {}
            indices: dict[str, dict[str, Any]] = {}
            for kind, pieces in kinds.items():
                sharded = any(piece.sharded for piece in pieces.values())
                name = f"{kind}{self._number()}.safetensors" if sharded else f"{kind}.safetensors"
                mine = {key: piece for key, piece in pieces.items() if self._writes(piece)}
                if mine or (self.world.is_main_process and not sharded):
                    manifest[name] = write_tensors(aside / name, mine)
                if sharded:
                    indices[kind] = {key: entry(name, piece) for key, piece in mine.items()}
            everyone = self._gather((manifest, indices))
            if self.world.is_main_process:
                publish_parts(aside, directory, everyone, state)
                after()
            self._gather(None)
        finally:
            if self.world.is_main_process:
                shutil.rmtree(aside, ignore_errors=True)

    def _number(self) -> str:
        size = self.world.shard_size
        return f"-{self.world.rank % size + 1:05d}-of-{size:05d}"

    def _writes(self, piece: Piece) -> bool:
        """Return whether this rank writes a piece: what several ranks hold is the first's."""
        if piece.sharded:
            return piece.replica == 0 and piece.tensor.numel() > 0
        return self.world.is_main_process

    def _gather(self, value: Any) -> list[Any]:
        """Return every rank's value on the main process; no rank is done before all have come."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.world.world_size
        dist.all_gather_object(found, value, group=self.group)
        return found


def write_tensors(path: Path, pieces: Mapping[str, Piece]) -> dict[str, int]:
    """Write one safetensors file; return its fingerprint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: piece.tensor.contiguous() for name, piece in pieces.items()}, path)
    return fingerprint(path)


def entry(file: str, piece: Piece) -> dict[str, Any]:
    """Return what an index says of a tensor, as far as this piece goes."""
    dtype = str(piece.tensor.dtype).removeprefix("torch.")
    parts = [{"file": file, "rows": [piece.start, piece.stop]}]
    return {"shape": list(piece.shape), "dtype": dtype, "pieces": parts}


def publish_parts(
    aside: Path,
    directory: Path,
    everyone: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]],
    state: dict[str, Any],
) -> None:
    """Add the indices and the state to the files of all ranks, and put the directory in place."""
    manifest = {name: found for files, _ in everyone for name, found in files.items()}
    joined: dict[str, dict[str, Any]] = {}
    for _, indices in everyone:
        for kind, entries in indices.items():
            into = joined.setdefault(kind, {})
            for name, found in entries.items():
                into.setdefault(name, {**found, "pieces": []})["pieces"] += found["pieces"]
    files = {index_path(aside, kind): entries for kind, entries in joined.items()}
    for path, value in {**files, aside / STATE: state}.items():
        write_json(path, value)
        manifest[path.name] = fingerprint(path)
    publish(aside, directory, manifest)


def copy_to_cpu(tensor: Tensor) -> Tensor:
    """Return a copy in the CPU's memory; a GPU's is complete once the GPU has been waited for."""
    pin = tensor.device.type == "cuda"
    made = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pin)
    return made.copy_(tensor, non_blocking=pin)
