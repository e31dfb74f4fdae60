"""Writes directories of tensors, complete or not there: at once, or while training goes on."""

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
from torch import Tensor

from magneto.files import aside_path, fingerprint, process_name, publish, write_json
from magneto.training.checkpoint import STATE
from magneto.training.distributed import World, broadcast_from_main
from magneto.training.sharding import Piece
from magneto.weights import index_path

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
