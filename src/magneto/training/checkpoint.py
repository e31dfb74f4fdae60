"""Checkpoints and other saved weights, from which runs start and resume.

A checkpoint is a directory of safetensors files, JSON and a manifest with sizes and checksums. The
directory is never incomplete, and reading it does not use pickle. Runs with a single process or
"ddp" write whole tensors. In a sharded run, every rank writes and reads only its own rows, so no
process needs memory for the whole model.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from magneto.config import differences
from magneto.data.stream import named_tensors
from magneto.files import (
    DamagedError,
    clear_temporary,
    fingerprint,
    plain,
    process_name,
    publish,
    read_object,
    temporary_path,
    write_json,
)
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    Piece,
    World,
    barrier,
    broadcast_from_main,
    gather_lists,
    piece_of,
    unwrap,
)
from magneto.training.optimizer import WeightAverage
from magneto.training.task import ASSETS, DIGEST_FILE
from magneto.weights import (
    AVERAGE,
    MODEL,
    StoredTensor,
    has_tensors,
    index_path,
    list_checkpoints,
    list_steps,
    open_tensors,
    step_directory,
    step_of,
    undamaged,
)

OPTIMIZER = "optimizer"
STATE = "state.json"
# Sections of a recipe that can't change when a run is resumed.
FIXED_SECTIONS = ("task", "seed", "model", "data")
# Places of data and tokenizers. They may change, because a resumed run compares the data's digest
# and the copy of the tokenizer instead.
LOCATIONS = ("data.source", "data.validation_source", "data.tokenizer", "data.image_tokenizer")

PiecesByKind = Mapping[str, Mapping[str, Piece]]
"""This rank's rows of tensors, by kind ("model", "optimizer") and tensor name."""


def model_pieces(model: nn.Module, average: WeightAverage | None = None) -> dict[str, Piece]:
    """Return this rank's rows of parameters and persistent buffers. A tied tensor occurs once.

    If `average` is not None, averaged weights replace the model's weights.
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
def load_pieces(
    pieces: Mapping[str, Piece], stored: Mapping[str, StoredTensor | Tensor], where: object
) -> None:
    """Copy this rank's rows of stored tensors into `pieces`.

    `where` names the source in error messages.

    Raises:
        ValueError: If names or shapes differ.
    """
    missing, surplus = sorted(set(pieces) - set(stored)), sorted(set(stored) - set(pieces))
    wrong = [
        f"{name} has the shape {tuple(stored[name].shape)}, but {pieces[name].shape} in the model"
        for name in sorted(set(pieces) & set(stored))
        if stored[name].shape != pieces[name].shape
    ]
    if missing or surplus or wrong:
        problem = wrong or [f"missing {missing[:3]}, unexpected {surplus[:3]}"]
        raise ValueError(f"{where} has weights of another model: {problem[0]}")
    for name, piece in pieces.items():
        if not piece.tensor.numel():
            continue
        given = stored[name]
        if isinstance(given, StoredTensor):
            piece.tensor.copy_(given.rows(piece.start, piece.stop))
        else:
            piece.tensor.copy_(given[piece.start : piece.stop] if given.ndim else given)


def optimizer_pieces(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Piece]:
    names = {id(parameter): name for name, parameter in unwrap(model).named_parameters()}
    return {
        f"{kind}/{names[id(parameter)]}": piece_of(torch.as_tensor(value))
        for parameter, values in optimizer.state.items()
        for kind, value in values.items()
    }


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, stored: dict[str, StoredTensor]
) -> None:
    names = {id(parameter): name for name, parameter in unwrap(model).named_parameters()}
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    known = {names[id(parameter)]: number for number, parameter in enumerate(trained)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in stored.items():
        kind, name = key.split("/", 1)
        if name not in known:
            raise ValueError(f"the optimizer's file has {key}, but this parameter is not trained")
        parameter = trained[known[name]]
        of_rows = tensor.shape and tensor.shape == tuple(parameter.shape)
        empty = torch.zeros_like(parameter.detach()) if of_rows else torch.zeros(tensor.shape)
        load_pieces({key: piece_of(empty)}, {key: tensor}, "the optimizer's file")
        state.setdefault(known[name], {})[kind] = empty
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def average_weights(pieces: Mapping[str, Piece], directories: list[Path]) -> dict[str, Piece]:
    held = [open_tensors(directory) for directory in directories]
    averaged = {}
    for name, piece in pieces.items():
        total = torch.zeros(piece.tensor.shape, dtype=torch.float64)
        if piece.tensor.numel():
            for stored in held:
                total += stored[name].rows(piece.start, piece.stop).double()
        averaged[name] = replace(piece, tensor=(total / len(held)).to(piece.tensor.dtype))
    return averaged


class RunWeights:
    """Weights in a run's directory: checkpoints, the best weights, and weights to average.

    Every rank must call each method. `say` prints warnings about damaged weights.

    Attributes:
        undamaged: Undamaged checkpoints, the oldest first (main process only).
        best: Steps and values of the best evaluations, the best first.
    """

    def __init__(
        self, run: Path, config: TrainingConfig, world: World, say: Callable[[str], None]
    ) -> None:
        self.run = run
        self.config = config
        self.world = world
        self.say = say
        self.writer = CheckpointWriter(world, config.async_save)
        self.undamaged: list[Path] = []
        self.best: list[dict[str, Any]] = []

    def newest(self) -> Path | None:
        """Return the newest undamaged checkpoint, or None.

        Temporary directories of interrupted writes are removed.
        """
        if self.world.is_main_process:
            for directory in (self.run, self.run / "checkpoints", self.run / "candidates"):
                clear_temporary(directory)
            held = list_checkpoints(self.run)
            self.undamaged = self._undamaged(held, "skipping damaged checkpoint")
        return broadcast_from_main(self.undamaged[-1] if self.undamaged else None, self.world)

    def save_checkpoint(self, kinds: PiecesByKind, state: dict[str, Any]) -> None:
        """Write the checkpoint of a step, then remove old checkpoints.

        The newest `training.keep_checkpoints` undamaged checkpoints are kept.
        """
        directory = step_directory(self.run / "checkpoints", state["step"])

        def prune() -> None:  # damaged checkpoints don't count
            found, keep = {*self.undamaged, directory}, self.config.keep_checkpoints
            self.undamaged = sorted(found, key=step_of)[-keep:]
            for path in list_checkpoints(self.run) if len(found) >= keep else ():
                if step_of(path) < step_of(self.undamaged[0]):
                    shutil.rmtree(path)

        self.writer.write(directory, kinds, state, prune)

    def keep_best(
        self, step: int, value: float, higher: bool, pieces: Mapping[str, Piece],
        metrics: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Save the weights if `value` is among the best values of the primary metric."""
        entry = {"step": step, "value": value}
        self.rank(entry, higher)
        if entry not in self.best:
            return
        kept = {each["step"] for each in self.best}
        state = {"step": step, "metrics": plain(metrics)}
        if self.best[0] == entry:
            self.writer.write(self.run / "best", {MODEL: pieces}, state)
        if self.candidates:
            folder = self.run / "candidates"

            def prune() -> None:
                for directory in list_steps(folder):
                    if step_of(directory) not in kept:
                        shutil.rmtree(directory)

            self.writer.write(step_directory(folder, step), {MODEL: pieces}, state, prune)

    def rank(self, entry: dict[str, Any], higher: bool) -> None:
        """Add the step and value of an evaluation to `best` if the value is among the best."""
        if entry not in self.best:
            self.best = sorted([*self.best, entry], key=itemgetter("value"), reverse=higher)
            self.best = self.best[: max(self.candidates, 1)]

    @property
    def candidates(self) -> int:
        return self.config.average_checkpoints if self.config.average_by == "best" else 0

    def save_final(
        self, step: int, pieces: Mapping[str, Piece], metrics: dict[str, float]
    ) -> dict[str, float]:
        """Write the final weights, and an average of checkpoints if configured.

        With early stopping (`training.patience`), the best weights are first copied into `pieces`.

        Returns:
            Metrics that the final weights reached in evaluation.
        """
        if self.config.patience and self.best:
            self.writer.wait()
            barrier(self.world)  # the main process has written the best weights
            best = self.run / "best"
            load_pieces(pieces, open_tensors(best), best)
            kept = read_object(best / STATE, "step", "metrics")
            step = kept["step"]
            metrics = {key: math.nan if x is None else x for key, x in kept["metrics"].items()}
        state = {"step": step, "metrics": plain(metrics)}
        self.writer.write(self.run / "final", {MODEL: pieces}, state)
        if self.config.average_checkpoints:
            self.writer.wait()  # the last checkpoint is among those averaged
            if found := broadcast_from_main(self._averaged(), self.world):
                names = {"average_of": [path.name for path in found]}
                kinds = {MODEL: average_weights(pieces, found)}
                self.writer.write(self.run / "averaged", kinds, names)
        return metrics

    def save_diverged(
        self, step: int, pieces: Mapping[str, Piece], batch: Any, values: Mapping[str, Any]
    ) -> None:
        """Save the weights and the batch of a diverged run for inspection.

        The saved weights are the weights after `step`. Losses are read only when a log row is
        written, so `step` may be some steps after the divergence.
        """
        kinds = {MODEL: pieces}
        if self.world.is_main_process:
            tensors = named_tensors(batch)
            # safetensors refuses tensors that share memory.
            kinds["batch"] = {name: piece_of(tensor.clone()) for name, tensor in tensors.items()}
        state = plain({**values, "weights_after_step": step})
        self.writer.write(self.run / "diverged", kinds, state)

    def _averaged(self) -> list[Path]:
        if not self.world.is_main_process:
            return []
        if self.config.average_by == "last":
            directories = self.undamaged[-self.config.average_checkpoints :]
        else:
            steps = sorted(entry["step"] for entry in self.best)
            directories = [step_directory(self.run / "candidates", step) for step in steps]
        return self._undamaged(directories, "damaged weights excluded from the average")

    def _undamaged(self, directories: list[Path], notice: str) -> list[Path]:
        found, problems = undamaged(directories)
        for problem in problems:
            self.say(f"{notice}: {problem}")
        return found


class CheckpointWriter:
    """Writer of checkpoints. All ranks must call `write`, with the same keys in `kinds`.

    With `background`, tensors are copied to CPU memory and written on a thread.
    """

    def __init__(self, world: World, background: bool) -> None:
        self.world = world
        self.background = background
        # A separate group lets the thread wait while training communicates.
        self.group: Any = dist.new_group(backend="gloo") if world.world_size > 1 else None
        self.process: str = broadcast_from_main(process_name(), world)
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def write(
        self,
        directory: Path,
        kinds: PiecesByKind,
        state: dict[str, Any],
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a directory. An existing directory is replaced when the new content is complete.

        `state` is written as JSON. At the end, the main process calls `after`. If an earlier write
        in the background failed, this call raises the error.
        """
        self.wait()
        kinds = {
            kind: {name: piece for name, piece in pieces.items() if self._is_writer_of(piece)}
            for kind, pieces in kinds.items()
        }
        if not self.background:
            self._write(directory, kinds, state, after)
            return
        copies = {
            kind: {name: replace(p, tensor=copy_to_cpu(p.tensor)) for name, p in pieces.items()}
            for kind, pieces in kinds.items()
        }
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)

        def job() -> None:
            try:
                self._write(directory, copies, state, after)
            except BaseException as error:  # raised again by `wait`
                self._error = error

        self._thread = Thread(target=job, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(
        self, directory: Path, kinds: PiecesByKind, state: dict[str, Any], after: Callable[[], None]
    ) -> None:
        temporary = temporary_path(directory, self.process)
        try:
            manifest: dict[str, dict[str, int]] = {}
            indices: dict[str, dict[str, Any]] = {}
            for kind, pieces in kinds.items():
                sharded = any(piece.sharded for piece in pieces.values())
                name = f"{kind}{self._shard_suffix() if sharded else ''}.safetensors"
                if pieces or self.world.is_main_process:
                    manifest[name] = write_tensors(temporary / name, pieces)
                if sharded:
                    indices[kind] = {
                        key: {
                            "shape": list(piece.shape),
                            "dtype": str(piece.tensor.dtype).removeprefix("torch."),
                            "pieces": [{"file": name, "rows": [piece.start, piece.stop]}],
                        }
                        for key, piece in pieces.items()
                    }
            everyone = gather_lists([(manifest, indices)], self.world, self.group)
            if self.world.is_main_process:
                publish_parts(temporary, directory, everyone, state)
                after()
            gather_lists([], self.world, self.group)  # waits for the main process
        finally:
            if self.world.is_main_process:
                shutil.rmtree(temporary, ignore_errors=True)

    def _shard_suffix(self) -> str:
        size = self.world.shard_size
        return f"-{self.world.rank % size + 1:05d}-of-{size:05d}"

    def _is_writer_of(self, piece: Piece) -> bool:
        if piece.sharded:
            return piece.replica == 0 and piece.tensor.numel() > 0
        return self.world.is_main_process


def write_tensors(path: Path, pieces: Mapping[str, Piece]) -> dict[str, int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: piece.tensor.contiguous() for name, piece in pieces.items()}, path)
    return fingerprint(path)


def publish_parts(
    temporary: Path,
    directory: Path,
    everyone: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]],
    state: dict[str, Any],
) -> None:
    manifest = {name: found for files, _ in everyone for name, found in files.items()}
    merged: dict[str, dict[str, Any]] = {}
    for _, indices in everyone:
        for kind, entries in indices.items():
            into = merged.setdefault(kind, {})
            for name, found in entries.items():
                into.setdefault(name, {**found, "pieces": []})["pieces"] += found["pieces"]
    files = {index_path(temporary, kind): entries for kind, entries in merged.items()}
    for path, value in {**files, temporary / STATE: state}.items():
        write_json(path, value)
        manifest[path.name] = fingerprint(path)
    publish(temporary, directory, manifest)


def copy_to_cpu(tensor: Tensor) -> Tensor:
    """Return a copy in CPU memory. Call `torch.cuda.synchronize` before using a copy from a GPU."""
    pin = tensor.device.type == "cuda"
    made = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pin)
    return made.copy_(tensor, non_blocking=pin)


def save_checkpoint(state: Any, pending: list[dict[str, Any]]) -> None:
    """Write a checkpoint of a `TrainingState`. `pending` has steps that are not yet logged."""
    model, average = state.model, state.average
    kinds = {MODEL: model_pieces(model), OPTIMIZER: optimizer_pieces(model, state.optimizer)}
    if average is not None:
        kinds[AVERAGE] = model_pieces(model, average)
    values = {
        "step": state.step,
        "pending": pending,
        "detector": state.detector.state_dict(),
        "best": state.weights.best,
        "metrics": state.metrics,
        "evaluated": state.evaluated,
        "recipe": state.recipe,
    }
    state.weights.save_checkpoint(kinds, values)


def load_checkpoint(state: Any, directory: Path) -> None:
    load_pieces(model_pieces(state.model), open_tensors(directory), directory)
    load_optimizer(state.model, state.optimizer, open_tensors(directory, OPTIMIZER))
    if state.average is not None:
        state.average.reset()  # if the checkpoint has no average, start at the weights
        if has_tensors(directory, AVERAGE):
            pieces = model_pieces(state.model, state.average)
            load_pieces(pieces, open_tensors(directory, AVERAGE), directory)
    held = read_object(directory / STATE)
    state.step, state.metrics, state.weights.best = held["step"], held["metrics"], held["best"]
    state.evaluated = held.get("evaluated", 0)
    with suppress(OSError, DamagedError):  # there may be no best weights yet
        kept = read_object(state.run / "best" / STATE, "step", "metrics")
        if kept["step"] > state.step:  # written after the checkpoint, in place of an earlier best
            entry = {"step": kept["step"], "value": kept["metrics"][state.task.primary_metric]}
            state.weights.rank(entry, state.task.higher_is_better)
    state.detector.load_state_dict(held["detector"])
    for row in held["pending"]:
        step = row.pop("step")
        values = torch.tensor(list(row.values()), device=state.world.device)
        state.pending.append((step, list(row), values))


def compare_recipe(run: Path, kept: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[str]:
    now = json.loads(json.dumps(recipe, default=str))
    content_is_compared = (run / ASSETS / DIGEST_FILE).exists()
    found = {
        name: f"{name} is {new} (was {old})"
        for name, old, new in differences(kept, now)
        if not (content_is_compared and name in LOCATIONS)
    }
    wrong = [line for name, line in found.items() if name.partition(".")[0] in FIXED_SECTIONS]
    if wrong:
        raise ValueError(
            f"{run} was started with another recipe: {', '.join(wrong)}; resume it with the "
            "original recipe, or choose another directory (--out)"
        )
    return list(found.values())
