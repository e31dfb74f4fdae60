"""The loop. It knows `tasks.base` and nothing of what is trained.

Every step takes the gradient of a summed loss over micro-batches and ranks and divides it by one
count, so that cutting a batch differently changes nothing. Randomness is a function of (seed, step,
rank). What happens every so many steps is a hook. A run can be killed at any moment: it goes on
from its newest whole checkpoint and ends where it would have ended.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from magneto.tasks.base import Task
from magneto.training import hooks as periodic
from magneto.training.checkpoint import (
    average_weights,
    list_checkpoints,
    load_checkpoint,
    newest_whole,
    save_weights,
    set_model_tensors,
)
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    Ranks,
    barrier,
    first_goes_ahead,
    from_first,
    ranks,
    spread,
    to_device,
)
from magneto.training.divergence import DivergenceDetector
from magneto.training.ema import WeightAverage
from magneto.training.files import write_json
from magneto.training.hooks import Hook, Stop
from magneto.training.optimizer import build_optimizer, set_learning_rate
from magneto.training.prefetch import Prefetch
from magneto.training.progress import Reporter
from magneto.training.record import Record, write_environment
from magneto.training.schedule import learning_rate
from magneto.training.step import accumulate, scale_gradients, step_seed
from magneto.training.throughput import Throughput, count_flops, peak_flops


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended.

    Attributes:
        status: "finished", "diverged" or "interrupted".
        step: Steps taken.
        metrics: The last evaluation.
        best: The best evaluation by the task's primary metric: its step and value.
        diverged_at: Step at which it diverged, or None.
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


def train(
    task: Task,
    config: TrainingConfig,
    run: Path,
    *,
    seed: int,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    report: Reporter | None = None,
) -> TrainingResult:
    """Train a task's model in the directory `run`.

    Args:
        task: What to train.
        config: How.
        run: Directory for checkpoints and records; made if it is not there.
        seed: Of weights, data order and dropout.
        resume: Go on from the newest whole checkpoint in `run`, if there is one.
        hooks: Called besides the loop's own.
        report: Where progress is shown; by default on stderr.

    Returns:
        How it ended; the same is written to result.json.
    """
    started = time.perf_counter()
    with ranks(config) as among:
        report = report or Reporter(quiet=not among.first)
        with first_goes_ahead(among):
            run.mkdir(parents=True, exist_ok=True)
            task.prepare(report)
        trainer = Trainer(task, config, run, seed, among, report)
        trainer.begin(resume)
        with closing(trainer), trainer.listening():
            trainer.run_steps(hooks)
            result = trainer.end(started)
        barrier(among)
    return result


class Trainer:
    """One run: the model and all that belongs to it. Hooks may read everything, and set `stop`."""

    def __init__(
        self, task: Task, config: TrainingConfig, run: Path, seed: int, among: Ranks, report: Reporter
    ) -> None:
        self.task, self.config, self.run, self.seed = task, config, run, seed
        self.ranks, self.report = among, report
        torch.manual_seed(seed)
        model = task.build_model().to(among.device).train()
        self.stream = task.train_stream(config.batch_size, seed)
        parts = among.size * config.micro_batches
        wanted = range(among.rank * config.micro_batches, (among.rank + 1) * config.micro_batches)
        sample = to_device(self.stream.next(parts, wanted)[0], among.device)
        flops = count_flops(task, model, sample, config.precision)
        self.stream = task.train_stream(config.batch_size, seed)
        self.throughput = Throughput(flops, peak_flops(among.device, config.precision))
        self.model = spread(model, among)
        if config.compile:
            self.model.compile()
        self.optimizer = build_optimizer(self.model, config)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.average = WeightAverage(self.model, config.ema_decay) if config.ema_decay else None
        self.detector = DivergenceDetector(config.divergence_share, config.divergence_patience)
        self.batches = Prefetch(self.stream, parts, list(wanted))
        self.step = 0
        self.stream_state: dict[str, Any] = self.stream.state_dict()
        self.pending: list[tuple[int, list[str], torch.Tensor]] = []
        self.best: list[dict[str, Any]] = []
        self.metrics: dict[str, float] = {}
        self.stop: Stop | None = None
        self.interrupted = False
        self.record: Record | None = None

    def begin(self, resume: bool) -> None:
        """Load the newest whole checkpoint if asked to, and open the records."""
        directory, problems = from_first(newest_whole(self.run), self.ranks)
        for problem in problems:
            self.report.say(problem)
        if resume and directory is not None:
            self.load(directory)
            self.report.say(f"going on from {directory}, step {self.step}")
        elif resume:
            self.report.say(f"no whole checkpoint in {self.run}: starting from step 0")
        if self.ranks.first:
            self.record = Record(self.run, self.step, self.config.tensorboard)
            write_environment(self.run)
            self.task.artifacts(self.run)

    def load(self, directory: Path) -> None:
        """Put a checkpoint into this trainer."""
        state = load_checkpoint(directory, self.model, self.optimizer)
        if self.average:
            kept = [p.detach().clone() for p in self.parameters]
            set_model_tensors(self.model, load_file(directory / "ema.safetensors"), directory)
            self.average.take()
            with torch.no_grad():
                for parameter, value in zip(self.parameters, kept, strict=True):
                    parameter.copy_(value)
        self.step = state["step"]
        self.stream.load_state_dict(state["stream"])
        self.stream_state = state["stream"]
        self.detector.load_state_dict(state["detector"])
        self.best, self.metrics = state["best"], state["metrics"]
        for row in state["pending"]:
            step = row.pop("step")
            self.pending.append((step, list(row), torch.tensor(list(row.values()))))

    def run_steps(self, hooks: Sequence[Hook]) -> None:
        """Take steps until the last one, or until something stops the run."""
        config = self.config
        every = [
            Hook(config.log_every, periodic.log),
            *hooks,
            Hook(config.evaluate_every, periodic.evaluate),
            Hook(config.save_every, periodic.save),
        ]
        batches = iter(self.batches)
        while self.step < config.steps and self.stop is None:
            pieces, self.stream_state = next(batches)
            self.train_step(pieces)
            for hook in every:
                if self.stop is None and hook.due(self.step, config.steps):
                    hook.function(self)
            if self.stop is None and self.ranks.size == 1 and self.interrupted:
                self.stop = Stop("interrupted")

    def train_step(self, pieces: list[Any]) -> None:
        """Take one optimizer step; nothing in it waits for the device."""
        torch.manual_seed(step_seed(self.seed, self.step, self.ranks.rank))
        sums, names = accumulate(self.task, self.model, pieces, self.config, self.ranks)
        norm = scale_gradients(self.parameters, sums[1], self.config.clip_norm, self.ranks)
        set_learning_rate(self.optimizer, learning_rate(self.config, self.step))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average:
            self.average.update()
        self.step += 1
        values = torch.cat((sums, norm.float().reshape(1)))
        self.pending.append((self.step, [*names, "gradient_norm"], values))
        self.throughput.add(sum(self.task.size(piece) for piece in pieces))

    def read_pending(self) -> list[dict[str, Any]]:
        """Return the steps not yet logged as plain numbers; this waits for the device."""
        if not self.pending:
            return []
        table = torch.stack([values.to("cpu") for _, _, values in self.pending]).tolist()
        return [
            {"step": step, **dict(zip(names, row, strict=True))}
            for (step, names, _), row in zip(self.pending, table, strict=True)
        ]

    def add_row(self, row: dict[str, Any]) -> None:
        """Record a row of metrics (the first rank only)."""
        if self.record is not None:
            self.record.add(row)

    def end(self, started: float) -> TrainingResult:
        """Leave behind what the run's end owes: a checkpoint, final weights, the result."""
        stop = self.stop or Stop("finished")
        self.report.finish()
        if stop.status == "interrupted":
            periodic.save(self)
        if stop.status == "finished":
            self.save_final()
        best = self.best[0] if self.best else {}
        seconds = time.perf_counter() - started
        result = TrainingResult(
            stop.status, self.step, self.metrics, best, stop.at, stop.reason, seconds
        )
        if self.ranks.first:
            write_json(self.run / "result.json", asdict(result))
        return result

    def save_final(self) -> None:
        """Write the last weights, and the average of several checkpoints if that was asked for."""
        state = {"step": self.step, "metrics": self.metrics}
        tensors = periodic.used_weights(self)
        if self.ranks.first:
            save_weights(self.run / "final", tensors, state)
        count = self.config.average_checkpoints
        if count:
            found = list_checkpoints(self.run)[-count:]
            if self.config.average_by == "best":
                found = sorted((self.run / "candidates").glob("step-*"))
            if self.ranks.first:
                steps = [path.name for path in found]
                save_weights(self.run / "averaged", average_weights(found), {"of": steps})

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Let a first Ctrl-C or SIGTERM end the run after the current step, with a checkpoint."""

        def handle(number: int, frame: Any) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True
            self.report.say("stopping after this step; again to stop at once")

        kept = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                kept[number] = signal.signal(number, handle)
        except ValueError:  # not the main thread: signals are somebody else's
            pass
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Stop the batch thread and close the records."""
        self.batches.close()
        self.report.finish()
        if self.record is not None:
            self.record.close()
