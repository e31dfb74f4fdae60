"""How a run begins: from nothing, or resumed from the newest complete checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from magneto.files import clear_aside, directory_aside
from magneto.training.checkpoint import AVERAGE, fill, load_checkpoint, model_pieces
from magneto.training.distributed import broadcast_from_main
from magneto.training.environment import write_environment
from magneto.training.metrics_logger import MetricsLogger
from magneto.training.state import TrainingState
from magneto.training.task import Task
from magneto.weights import has_tensors, list_checkpoints, open_tensors, undamaged


def begin(state: TrainingState, resume: bool) -> None:
    """Load the newest whole checkpoint if asked to, and open the records.

    Raises:
        ValueError: If the directory holds a run's checkpoints and `resume` was not asked for.
    """
    run, world, say = state.run, state.world, state.report.say
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
        state.whole, problems = undamaged(list_checkpoints(run))
        for problem in problems:
            say(f"damaged checkpoint passed over: {problem}")
    directory = broadcast_from_main(state.whole[-1] if state.whole else None, world)
    if directory is not None:
        load(state, directory)
        say(f"going on from {directory}, step {state.step}")
    elif resume:
        say(f"no whole checkpoint in {run}: starting from step 0")
    count = sum(parameter.numel() for parameter in state.parameters)
    say(f"{count:,} parameters on {world.world_size} x {world.device.type}, {world.strategy}")
    if world.is_main_process:
        state.metrics_logger = MetricsLogger(run, state.step, state.config.tensorboard, say)
        write_environment(run)
        keep_artifacts(state.task, run)


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


def load(state: TrainingState, directory: Path) -> None:
    """Put a checkpoint into a run's state."""
    held = load_checkpoint(directory, state.model, state.optimizer)
    load_average(state, directory)
    state.step = held["step"]
    state.stream.load_state_dict(held["stream"])
    state.stream_state, state.logged = held["stream"], held["logged"]
    state.detector.load_state_dict(held["detector"])
    state.best, state.metrics = held["best"], held["metrics"]
    for row in held["pending"]:
        step = row.pop("step")
        values = torch.tensor(list(row.values()), device=state.world.device)
        state.pending.append((step, list(row), values))


def load_average(state: TrainingState, directory: Path) -> None:
    """Fill the average of the weights; where none was kept it begins at the weights as they are."""
    if state.average is None:
        return
    state.average.take()
    if has_tensors(directory, AVERAGE):
        pieces = model_pieces(state.model, state.average)
        fill(pieces, open_tensors(directory, AVERAGE), directory)
