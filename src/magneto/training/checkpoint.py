"""Checkpoints: complete or not there, readable by any number of ranks, never unpickled.

A checkpoint is a directory of safetensors files with whole (unsharded) tensors, JSON, and a
manifest of sizes and checksums. Whole tensors are gathered by torch's distributed state-dict
functions, so what 2 ranks wrote 1 can read, and the other way; the first rank needs memory for one
whole copy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from magneto.files import Damaged, check_directory, whole_directory, write_json
from magneto.training.distributed import World, barrier, unwrap

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


def step_directory(run: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step:08d}"


def model_tensors(model: nn.Module, world: World) -> dict[str, Tensor]:
    """Gather whole weights on the CPU of the first rank; a tied one under its first name only."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    gathered: dict[str, Any] = get_model_state_dict(model, options=options)
    names = first_names(unwrap(model))
    # On a CPU the gathered tensors are the live ones, and would change under the caller's hands.
    return {name: gathered[name].clone() for name in names} if world.is_main_process else {}


def first_names(model: nn.Module) -> list[str]:
    """List the names of parameters and saved buffers, each shared tensor once."""
    saved = model.state_dict(keep_vars=True)
    seen: dict[int, str] = {}
    for name, tensor in saved.items():
        seen.setdefault(id(tensor), name)
    return list(seen.values())


def set_model_tensors(model: nn.Module, tensors: dict[str, Tensor], where: Path) -> None:
    """Put whole weights into a model, spread or not.

    Raises:
        ValueError: If names or shapes are not the model's.
    """
    inner = unwrap(model)
    expected = inner.state_dict(keep_vars=True)
    first = {id(expected[name]): name for name in first_names(inner)}
    wanted = {name: first[id(tensor)] for name, tensor in expected.items()}
    missing = sorted(set(wanted.values()) - set(tensors))
    surplus = sorted(set(tensors) - set(wanted.values()))
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, the model has {tuple(expected[name].shape)}"
        for name in set(wanted.values()) & set(tensors)
        if tensors[name].shape != expected[name].shape
    ]
    if missing or surplus or wrong:
        problem = wrong or [f"missing {missing[:3]}, unexpected {surplus[:3]}"]
        raise ValueError(f"{where} holds another model's weights: {problem[0]}")
    full: dict[str, Any] = {name: tensors[source] for name, source in wanted.items()}
    set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True))


def save_checkpoint(
    run: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    world: World,
) -> None:
    """Write the checkpoint of `state["step"]`; every rank calls this.

    Args:
        run: The run's directory.
        model: As the loop has it, spread or not.
        optimizer: Its optimizer.
        extra: Further files of whole tensors, by name (averaged weights).
        state: Plain values: the step, the stream, what hooks remember.
        world: The ranks.
    """
    weights = model_tensors(model, world)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    gathered: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=options)
    if world.is_main_process:
        with whole_directory(step_directory(run, state["step"])) as directory:
            save_file(weights, directory / MODEL)
            flat = {
                f"{key}/{name}": torch.as_tensor(value).contiguous()
                for name, values in gathered["state"].items()
                for key, value in values.items()
            }
            save_file(flat, directory / OPTIMIZER)
            for name, tensors in extra.items():
                save_file(tensors, directory / f"{name}.safetensors")
            groups = gathered["param_groups"]
            write_json(directory / STATE, {**state, "param_groups": groups})
    barrier(world)


def load_checkpoint(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Put a checkpoint into model and optimizer; return its state. Every rank calls this."""
    set_model_tensors(model, load_file(directory / MODEL), directory)
    state = json.loads((directory / STATE).read_text(encoding="utf-8"))
    values: dict[str, dict[str, Tensor]] = {}
    for key, tensor in load_file(directory / OPTIMIZER).items():
        kind, name = key.split("/", 1)
        values.setdefault(name, {})[kind] = tensor
    whole: dict[str, Any] = {"state": values, "param_groups": state.pop("param_groups")}
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer, whole, options=options)
    return state


def list_checkpoints(run: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    return sorted((run / "checkpoints").glob("step-*"))


def newest_whole(run: Path) -> tuple[Path | None, list[str]]:
    """Return the newest undamaged checkpoint, and a line for each damaged one passed over."""
    problems = []
    for directory in reversed(list_checkpoints(run)):
        try:
            check_directory(directory)
            return directory, problems
        except Damaged as error:
            problems.append(f"damaged checkpoint passed over: {error}")
    return None, problems


def forget_old(run: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for directory in list_checkpoints(run)[:-keep]:
        shutil.rmtree(directory)


def save_weights(
    directory: Path,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    extra: Mapping[str, dict[str, Tensor]] = MappingProxyType({}),
) -> None:
    """Write weights and what is known of them, without an optimizer (the first rank only)."""
    with whole_directory(directory) as aside:
        save_file(tensors, aside / MODEL)
        for name, others in extra.items():
            contiguous = {key: tensor.contiguous() for key, tensor in others.items()}
            save_file(contiguous, aside / f"{name}.safetensors")
        write_json(aside / STATE, state)


def load_weights(model: nn.Module, run: Path, which: str = "auto") -> Path:
    """Load a run's weights into a model in one process.

    Args:
        model: Of the run's shape.
        run: The run's directory.
        which: "best", "final", "averaged", "last" (checkpoint), a step's number, or "auto": the
            first there is of best, final and last.

    Returns:
        The directory they came from.

    Raises:
        FileNotFoundError: If the run has no such weights.
    """
    directory = find_weights(run, which)
    set_model_tensors(model, load_file(directory / MODEL), directory)
    return directory


def find_weights(run: Path, which: str = "auto") -> Path:
    """Return the directory of the named weights of a run; see `load_weights`.

    Raises:
        FileNotFoundError: If there are none.
    """
    last = newest_whole(run)[0]
    there = {name: run / name for name in ("best", "final", "averaged")}
    there |= {str(int(p.name.split("-")[1])): p for p in list_checkpoints(run)}
    if last is not None:
        there["last"] = last
    there = {name: path for name, path in there.items() if (path / MODEL).is_file()}
    order = ("best", "final", "last") if which == "auto" else (which,)
    for name in order:
        if name in there:
            return there[name]
    has = f"it has {', '.join(there)}" if there else "it has none yet"
    raise FileNotFoundError(f"no {which} weights in {run}: {has}")


def average_weights(directories: list[Path]) -> dict[str, Tensor]:
    """Return the mean of several checkpoints' weights, summed in float64."""
    total: dict[str, Tensor] = {}
    for directory in directories:
        for name, tensor in load_file(directory / MODEL).items():
            total[name] = total.get(name, torch.zeros(())) + tensor.double()
            kind = tensor.dtype
            if directory == directories[-1]:
                total[name] = (total[name] / len(directories)).to(kind)
    return total
