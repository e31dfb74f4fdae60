"""`magneto train RECIPE --dry-run`: what a training would take. No run is written."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import torch

from magneto.commands.shared import print_json
from magneto.progress import ProgressBars, clock
from magneto.recipe import Recipe
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World, join_world
from magneto.training.freed_memory import keep_freed_memory
from magneto.training.length import in_steps
from magneto.training.loop import begin_state, train_step
from magneto.training.memory import free_memory, gigabytes, peak_memory, state_bytes
from magneto.training.task import Task

# Steps that are timed after a first one, which is slower; fewer if they take more seconds in all.
STEPS = 5
SECONDS = 20.0


def dry_run(recipe: Recipe, report: ProgressBars, as_json: bool) -> int:
    """Take some steps, without a directory, and say what all of them would take.

    The data is read, and tokenised into the cache, as for a training. A model whose weights and
    optimizer alone fill the memory is not built: of it nothing is timed.
    """
    task = recipe.build_task()
    with join_world(recipe.training) as world, keep_freed_memory(world.device):
        task.prepare(report)
        config = in_steps(recipe.training, task)
        found = sizes(task, config)
        free = free_memory(world.device)
        if free is None or found["state_bytes"] < free:
            found |= measured(task, config, recipe.seed, world, report)
        report.finish()
        if world.is_main_process:
            if as_json:
                print_json({"device": str(world.device), "unit": task.unit, **found})
            else:
                print("\n".join(lines(found, task.unit, str(world.device))))
    return 0


def sizes(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """Return what needs no step: parameters, steps, and the bytes that every weight takes."""
    with torch.device("meta"):
        model = task.build_model()
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "state_bytes": state_bytes(model, config).total,
        "steps": config.steps,
        "batch_size": config.batch_size,
        "examples": task.examples(),
    }


def measured(
    task: Task, config: TrainingConfig, seed: int, world: World, report: ProgressBars
) -> dict[str, Any]:
    """Take steps; return seconds and units of one, and the memory that was in use at most."""
    nowhere = Path(os.devnull) / "run"  # a state begins before anything is written
    state = begin_state(task, config, nowhere, seed, world, report)
    seconds, units = [], 0
    with closing(state):  # Ctrl-C ends it at once: there is nothing to keep
        batches = state.batches.start(0)
        for number in range(STEPS + 1):
            started = time.perf_counter()
            pieces = next(batches)
            train_step(state, pieces)
            state.read_pending()  # waits for the device
            state.pending = []
            units += sum(task.size(piece) for piece in pieces)
            seconds.append(time.perf_counter() - started)
            report.update("trying steps", number + 1, STEPS + 1)
            if sum(seconds) > SECONDS and number > 0:
                break
    step_seconds = median(seconds[1:])
    each = units * world.world_size / len(seconds)
    return {
        "seconds_per_step": step_seconds,
        "timed_steps": len(seconds) - 1,
        "seconds": step_seconds * config.steps,
        "units_per_step": each,
        "units": each * config.steps,
        "peak_bytes": peak_memory(world.device),
    }


def lines(found: dict[str, Any], unit: str, device: str) -> list[str]:
    """Write what was found for people."""
    steps, batch = found["steps"], found["batch_size"]
    epochs = ""
    if found["examples"]:
        epochs = f", {steps * batch / found['examples']:.3g} epochs of {found['examples']:,}"
    state = f"{gigabytes(found['state_bytes'])} of weights, gradients and optimizer"
    rows = [
        ("parameters", f"{found['parameters']:,}"),
        ("steps", f"{steps:,}, each of {batch} examples{epochs}"),
    ]
    if "seconds" in found:
        each, whole = found["units_per_step"], found["units"]
        rows += [
            (unit, f"{whole:,.0f}, {each:,.0f} a step"),
            ("memory", f"{state}; {gigabytes(found['peak_bytes'])} in use at most, on {device}"),
            ("time", f"{clock(found['seconds'])}, {found['seconds_per_step']:.3g} s a step "
             f"(median of {found['timed_steps']}), without evaluations and checkpoints"),
        ]  # fmt: skip
    else:
        rows.append(("memory", f"{state}, more than is free on {device}: no step was timed"))
    return [f"{name:<12}{words}" for name, words in rows] + ["no run was written"]
