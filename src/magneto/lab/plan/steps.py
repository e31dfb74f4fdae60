"""What a training takes, measured: some of its steps are taken, and no run is written."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import torch

from magneto.progress import ProgressBars
from magneto.recipe import Recipe
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World, join_world
from magneto.training.freed_memory import keep_freed_memory
from magneto.training.length import in_steps
from magneto.training.loop import begin_state, train_step
from magneto.training.memory import free_memory, peak_memory, state_bytes
from magneto.training.task import Task

# Steps that are timed after a first one, which is slower; fewer if they take more seconds in all.
STEPS = 5
SECONDS = 20.0


def try_steps(recipe: Recipe, report: ProgressBars) -> dict[str, Any]:
    """Take some steps of a recipe, without a directory, and return what all of them would take.

    The data is read, and tokenised into the cache, as for a training. A model whose weights and
    optimizer alone fill the memory is not built: of it nothing is timed.

    Returns:
        The device, parameters, steps, bytes, and where steps were taken seconds and units.
    """
    task = recipe.build_task()
    with join_world(recipe.training) as world, keep_freed_memory(world.device):
        task.prepare(report)
        examples = task.train_stream(recipe.training.batch_size, recipe.seed).examples
        config = in_steps(recipe.training, examples)
        found = {"device": str(world.device), "unit": task.unit, **sizes(task, config),
                 "examples": examples}  # fmt: skip
        free = free_memory(world.device)
        if free is None or found["state_bytes"] < free:
            found |= measured(task, config, recipe.seed, world, report)
        report.finish()
    return found


def sizes(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """Return what needs no step: parameters, steps, and the bytes that every weight takes."""
    with torch.device("meta"):
        model = task.build_model()
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "state_bytes": state_bytes(model, config).total,
        "steps": config.steps,
        "batch_size": config.batch_size,
    }


def measured(
    task: Task, config: TrainingConfig, seed: int, world: World, report: ProgressBars
) -> dict[str, Any]:
    """Take steps; return seconds and units of one, and the memory that was in use at most."""
    nowhere = Path(os.devnull) / "run"  # a state begins before anything is written
    state = begin_state(task, config, nowhere, seed, world, report)
    seconds = []
    with closing(state):  # Ctrl-C ends it at once: there is nothing to keep
        batches = state.batches.start(0)
        for number in range(STEPS + 1):
            started = time.perf_counter()
            pieces = next(batches)
            train_step(state, pieces)
            state.read_pending()  # waits for the device
            state.pending = []
            seconds.append(time.perf_counter() - started)
            report.update("trying steps", number + 1, STEPS + 1)
            if sum(seconds) > SECONDS and number > 0:
                break
    step_seconds = median(seconds[1:])
    each = state.throughput.units * world.world_size / len(seconds)
    return {
        "seconds_per_step": step_seconds,
        "timed_steps": len(seconds) - 1,
        "seconds": step_seconds * config.steps,
        "units_per_step": each,
        "units": each * config.steps,
        "peak_bytes": peak_memory(world.device),
    }
