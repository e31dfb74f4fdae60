"""How a run ends: what it leaves in its directory, and what it says."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from magneto.files import plain, write_json
from magneto.progress import clock
from magneto.training.batch import named_tensors
from magneto.training.checkpoint import (
    average_weights,
    list_checkpoints,
    model_tensors,
    save_weights,
)
from magneto.training.hooks import Stop, save, used_weights

if TYPE_CHECKING:
    from magneto.training.loop import Trainer


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


def end(trainer: Trainer, started: float) -> TrainingResult:
    """Leave behind what the run's end owes: a checkpoint, final weights, the result."""
    trainer.report.finish()
    if trainer.stop is not None and trainer.stop.status == "interrupted":
        save(trainer)  # which may find that it has diverged
    stop = trainer.stop or Stop("finished")
    if stop.status == "finished":
        save_final(trainer)
    if stop.status == "diverged":
        save_diverged(trainer, stop)
    best = trainer.best[0] if trainer.best else {}
    seconds = time.perf_counter() - started
    result = TrainingResult(
        stop.status, trainer.step, trainer.metrics, best, stop.at, stop.reason, seconds
    )
    if trainer.world.is_main_process:
        write_json(trainer.run / "result.json", plain(asdict(result)))
    trainer.report.say(last_words(trainer, result))
    return result


def last_words(trainer: Trainer, result: TrainingResult) -> str:
    """Say in one line how it ended and what can be done now."""
    if result.status == "interrupted":
        where = f"interrupted after step {result.step} of {trainer.config.steps}"
        return f"{where}; go on with: magneto train --resume {trainer.run}"
    if result.status == "diverged":
        where = f"diverged at step {result.diverged_at}: {result.reason}"
        return f"{where}; weights and batch are kept in {trainer.run / 'diverged'}"
    return f"finished after {clock(result.seconds)}"


def save_final(trainer: Trainer) -> None:
    """Write the last weights, and the average of several checkpoints if that was asked for."""
    tensors = used_weights(trainer)
    if not trainer.world.is_main_process:
        return
    state = {"step": trainer.step, "metrics": plain(trainer.metrics)}
    save_weights(trainer.run / "final", tensors, state)
    count = trainer.config.average_checkpoints
    if count:
        found = list_checkpoints(trainer.run)[-count:]
        if trainer.config.average_by == "best":
            found = sorted((trainer.run / "candidates").glob("step-*"))
        if found:
            names = {"average_of": [path.name for path in found]}
            save_weights(trainer.run / "averaged", average_weights(found), names)


def save_diverged(trainer: Trainer, stop: Stop) -> None:
    """Keep the weights, and the whole batch of the step that diverged, for a look.

    The batch is made again from where the stream stood at the last log, so that no step has to
    hold on to its batch. The weights are those of `weights_after_step`: losses are read when
    they are logged.
    """
    tensors = model_tensors(trainer.model, trainer.world)
    if not trainer.world.is_main_process:
        return
    stream = trainer.task.train_stream(trainer.config.batch_size, trainer.seed)
    stream.load_state_dict(trainer.logged["stream"])
    at = trainer.step if stop.at is None else stop.at
    batch: list[Any] = []
    for _ in range(at - trainer.logged["step"]):
        batch = stream.next(1, [0])
    state = {
        "diverged_at": stop.at,
        "reason": stop.reason,
        "weights_after_step": trainer.step,
        "losses": trainer.losses,
    }
    extra = {"batch": named_tensors(batch[0])} if batch else {}
    save_weights(trainer.run / "diverged", tensors, plain(state), extra)
