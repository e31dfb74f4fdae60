"""How a run begins: from nothing, or from the newest whole checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from magneto.files import clear_aside, directory_aside
from magneto.training.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    newest_whole,
    set_model_tensors,
)
from magneto.training.distributed import broadcast_from_main
from magneto.training.environment import write_environment
from magneto.training.metrics_logger import MetricsLogger
from magneto.training.task import Task

if TYPE_CHECKING:
    from magneto.training.loop import Trainer


def begin(trainer: Trainer, resume: bool) -> None:
    """Load the newest whole checkpoint if asked to, and open the records.

    Raises:
        ValueError: If the directory holds a run's checkpoints and `resume` was not asked for.
    """
    run, world, say = trainer.run, trainer.world, trainer.report.say
    held = broadcast_from_main(list_checkpoints(run) if world.is_main_process else [], world)
    if held and not resume:
        raise ValueError(
            f"{run} already holds a run with checkpoints up to {held[-1].name}: "
            "resume it (--resume), or train in another directory (--out)"
        )
    if world.is_main_process:
        for directory in (run, run / "checkpoints", run / "candidates"):
            clear_aside(directory)
        (run / "result.json").unlink(missing_ok=True)
    directory, problems = broadcast_from_main(
        newest_whole(run) if world.is_main_process else None, world
    )
    for problem in problems:
        say(problem)
    if directory is not None:
        load(trainer, directory)
        say(f"going on from {directory}, step {trainer.step}")
    elif resume:
        say(f"no whole checkpoint in {run}: starting from step 0")
    count = sum(parameter.numel() for parameter in trainer.parameters)
    say(f"{count:,} parameters on {world.world_size} x {world.device.type}, {world.strategy}")
    if world.is_main_process:
        trainer.metrics_logger = MetricsLogger(run, trainer.step, trainer.config.tensorboard, say)
        write_environment(run)
        keep_artifacts(trainer.task, run)


def keep_artifacts(task: Task, run: Path) -> None:
    """Write what a run's model needs later besides weights; what is there already stays.

    Raises:
        ValueError: If the task would put something else in its place: the run's weights were
            trained with another tokenizer, on other data.
    """
    with directory_aside(run / "artifacts") as aside:
        task.artifacts(aside)
        made = {path: run / path.name for path in sorted(aside.iterdir(), reverse=True)}
        for path, place in made.items():
            if contents(place) not in ({}, contents(path)):
                raise ValueError(
                    f"{place} differs from what this recipe and its data give now: they changed "
                    "after the run began; give it what it began with, or begin another run"
                )
        for path, place in made.items():
            if not contents(place):
                path.replace(place)


def contents(path: Path) -> dict[str, bytes]:
    """Return the content of a file, or of those in a folder, by path; nothing if there is none."""
    files = [path, *path.rglob("*")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def load(trainer: Trainer, directory: Path) -> None:
    """Put a checkpoint into a trainer."""
    state = load_checkpoint(directory, trainer.model, trainer.optimizer)
    if trainer.average:
        load_average(trainer, directory / "ema.safetensors")
    trainer.step = state["step"]
    trainer.stream.load_state_dict(state["stream"])
    trainer.stream_state, trainer.logged = state["stream"], state["logged"]
    trainer.detector.load_state_dict(state["detector"])
    trainer.best, trainer.metrics = state["best"], state["metrics"]
    for row in state["pending"]:
        step = row.pop("step")
        values = torch.tensor(list(row.values()), device=trainer.world.device)
        trainer.pending.append((step, list(row), values))


def load_average(trainer: Trainer, path: Path) -> None:
    """Fill the average of the weights; without a file it begins at the weights as they are."""
    average = trainer.average
    if average is None:
        return
    average.take()
    if path.exists():
        # Whole tensors go through the model, which cuts them for this rank.
        with average.in_place():
            set_model_tensors(trainer.model, load_file(path), path)
