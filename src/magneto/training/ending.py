"""How a run ends: what it leaves in its directory, and what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from magneto.data.problems import PROBLEMS_FILE
from magneto.data.stream import named_tensors
from magneto.files import check_directory, plain, read_json, write_json
from magneto.progress import clock
from magneto.tasks import TASKS, TaskEntry, command
from magneto.training.assets import write_plateau
from magneto.training.checkpoint import average_weights, model_pieces
from magneto.training.config import TrainingConfig
from magneto.training.distributed import broadcast_from_main, piece_of
from magneto.training.state import Stop, TrainingState, check_weights, save, used_weights
from magneto.training.task import entry_of
from magneto.weights import MODEL, has_tensors, step_directory, undamaged


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended.

    Attributes:
        status: "finished", "diverged" or "interrupted".
        step: Steps taken.
        metrics: The last evaluation.
        best: The best evaluation by the task's primary metric: its step and value.
        diverged_at: Step at which it diverged, counted from 1, or None.
        reason: In words, where it did not finish.
        seconds: Wall time of this process.
    """

    status: str
    step: int
    metrics: dict[str, float]
    best: dict[str, Any]
    diverged_at: int | None
    reason: str
    seconds: float


def finished_result(state: TrainingState) -> TrainingResult | None:
    """Return the result that a run left, if it finished with all the steps that are asked for.

    Only the main process looks; others return None.
    """
    if not state.world.is_main_process:
        return None
    try:
        values = read_json(state.run / "result.json")
        check_directory(state.run / "final")
        result = TrainingResult(**values)
    except (OSError, ValueError, TypeError):
        return None  # something is left to do, or to do again
    done = result.status == "finished" and result.step >= state.config.steps
    return result if done else None


def end(state: TrainingState, started: float) -> TrainingResult:
    """Leave behind what the run's end owes: a checkpoint, final weights, the result."""
    state.report.finish()
    if state.stop is not None and state.stop.status == "interrupted":
        save(state)  # which may find that it has diverged
    if state.stop is None:
        check_weights(state)
    stop = state.stop or Stop("finished")
    if stop.status == "finished":
        save_final(state)
    if stop.status == "diverged":
        save_diverged(state, stop)
    state.writer.wait()
    best = state.best[0] if state.best else {}
    seconds = time.perf_counter() - started
    result = TrainingResult(
        stop.status, state.step, state.metrics, best, stop.at, stop.reason, seconds
    )
    if state.metrics_logger is not None:
        state.metrics_logger.check()
        write_json(state.run / "result.json", plain(asdict(result)))
        batches = what_is_known(state).plateau_batches
        if stop.status != "interrupted" and batches:
            write_plateau(state.run, state.task.baseline(batches))
    if wrong := state.task.problems.describe():
        state.report.say(f"data problems, listed in {state.run / PROBLEMS_FILE}: {wrong}")
    for line in last_words(state, result).splitlines():
        state.report.say(line)
    return result


def what_is_known(state: TrainingState) -> TaskEntry:
    """Return what commands know of the task."""
    name = str(state.recipe.get("task", ""))
    return TASKS.get(name) or entry_of(name, type(state.task))


def last_words(state: TrainingState, result: TrainingResult) -> str:
    """Say how it ended and what can be done now."""
    if result.status == "interrupted":
        where = f"interrupted after step {result.step} of {state.config.steps}"
        return f"{where}; go on with: magneto train --resume {state.run}"
    if result.status == "diverged":
        where = f"diverged at step {result.diverged_at}: {result.reason}"
        folder = state.run / "diverged"
        what = "weights and batch" if has_tensors(folder, "batch") else "the weights"
        kept = f"{what} are kept in {folder}"
        return f"{where}; {kept}; {next_to_try(state.config)}"
    return "\n".join(finished_words(state, result))


def finished_words(state: TrainingState, result: TrainingResult) -> Iterator[str]:
    """Yield lines on a run that finished: its losses, its best step, where it is, what is next."""
    yield f"finished after {clock(result.seconds)}, {result.step:,} steps"
    losses = []
    if state.losses:
        mean = sum(state.losses) / len(state.losses)
        losses.append(f"training loss {mean:.4g} (mean of the last {len(state.losses)} steps)")
    if "loss" in result.metrics:
        losses.append(f"validation loss {result.metrics['loss']:.4g}")
    if losses:
        yield ", ".join(losses)
    if result.best:
        name, step = state.task.primary_metric, result.best["step"]
        yield f"best step {step}: validation {name} {result.best['value']:.4g}"
    yield f"the run is in {state.run}; next:"
    for verb in ("evaluate", "report", *what_is_known(state).verbs):
        yield f"  {command(verb, state.run)}"


def next_to_try(config: TrainingConfig) -> str:
    """Say what is worth trying after a divergence, what is cheapest first."""
    tries = [
        f"a lower --training.learning_rate (it was {config.learning_rate:g})",
        f"more --training.warmup_steps (there were {config.warmup_steps})",
    ]
    if config.clip_norm is None:
        tries.append("--training.clip_norm 1.0 (nothing was clipped)")
    return (
        f"try {', '.join(tries)}, or another --model.placement; "
        "`magneto probe` looks for the reason, layer by layer"
    )


def save_final(state: TrainingState) -> None:
    """Write the last weights, and the average of several checkpoints if that was asked for."""
    pieces = used_weights(state)
    values = {"step": state.step, "metrics": plain(state.metrics)}
    state.writer.write(state.run / "final", {MODEL: pieces}, values)
    if not state.config.average_checkpoints:
        return
    state.writer.wait()  # the last checkpoint is among those averaged
    found = broadcast_from_main(averaged(state), state.world)
    if found:
        names = {"average_of": [path.name for path in found]}
        kinds = {MODEL: average_weights(pieces, found)}
        state.writer.write(state.run / "averaged", kinds, names)


def averaged(state: TrainingState) -> list[Path]:
    """Return what is to be averaged, without what is damaged (the main process only)."""
    if not state.world.is_main_process:
        return []
    if state.config.average_by == "last":
        held = state.whole[-state.config.average_checkpoints :]
    else:
        steps = sorted(entry["step"] for entry in state.best)
        held = [step_directory(state.run / "candidates", step) for step in steps]
    found, problems = undamaged(held)
    for problem in problems:
        state.report.say(f"damaged weights left out of the average: {problem}")
    return found


def save_diverged(state: TrainingState, stop: Stop) -> None:
    """Keep the weights, and the whole batch of the step that diverged, for a look.

    The batch is made again, so that no step has to hold on to its batch. The weights are those of
    `weights_after_step`: losses are read when they are logged.
    """
    kinds = {MODEL: model_pieces(state.model)}
    if state.world.is_main_process:
        stream = state.task.train_stream(state.config.batch_size, state.seed)
        (batch,) = stream.batch((state.step if stop.at is None else stop.at) - 1)
        kinds["batch"] = {name: piece_of(tensor) for name, tensor in named_tensors(batch).items()}
    values = {
        "diverged_at": stop.at,
        "reason": stop.reason,
        "weights_after_step": state.step,
        "losses": state.losses,
    }
    state.writer.write(state.run / "diverged", kinds, plain(values))
