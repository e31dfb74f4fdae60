"""The training loop. It knows `magneto.training.task` and nothing of what is trained.

Every step takes the gradient of a summed loss over micro-batches and ranks and divides it by one
count, so that cutting a batch differently changes nothing. Randomness is a function of (seed, step,
rank). What happens every so many steps is a hook. A run can be killed at any moment: it goes on
from its newest whole checkpoint and ends where it would have ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from magneto.progress import ProgressBars
from magneto.training import hooks as periodic
from magneto.training.batch import to_device
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    World,
    any_rank,
    barrier,
    distribute_model,
    join_world,
    main_process_first,
)
from magneto.training.divergence import DivergenceDetector
from magneto.training.ema import WeightAverage
from magneto.training.ending import TrainingResult, end
from magneto.training.hooks import Hook, Stop
from magneto.training.interrupt import Interrupt
from magneto.training.length import in_steps
from magneto.training.metrics_logger import MetricsLogger
from magneto.training.optimizer import build_optimizer, set_learning_rate
from magneto.training.prefetch import Prefetch
from magneto.training.resume import begin
from magneto.training.schedule import learning_rate
from magneto.training.step import accumulate, scale_gradients, step_seed
from magneto.training.task import Task
from magneto.training.throughput import Throughput, count_flops, peak_flops


def train(
    task: Task,
    config: TrainingConfig,
    run: Path,
    *,
    seed: int,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    report: ProgressBars | None = None,
) -> TrainingResult:
    """Train a task's model in the directory `run`.

    Args:
        task: What to train.
        config: How.
        run: Directory for checkpoints and records; made if it is not there.
        seed: Of weights, data order and dropout.
        resume: Go on from the newest whole checkpoint in `run`, if there is one.
        hooks: Called besides the loop's own, after logging and before evaluation.
        report: Where progress is shown; by default on stderr.

    Returns:
        How it ended; the same is written to result.json.

    Raises:
        ValueError: If there is no learning rate, the batch is too small to be cut, the device or
            the ranks asked for are not there, or `run` holds a run that was not to be resumed.
    """
    started = time.perf_counter()
    learning_rate(config, 0)
    task.check_strategy(config.distributed)
    if config.threads:
        torch.set_num_threads(config.threads)
    with join_world(config) as world:
        main = world.is_main_process
        report = report if report and main else ProgressBars(quiet=not main)
        with main_process_first(world):
            run.mkdir(parents=True, exist_ok=True)
            task.prepare(report)
        config = in_steps(config, task)
        trainer = Trainer(task, config, run, seed, world, report)
        with closing(trainer), trainer.interrupt:
            begin(trainer, resume)
            trainer.run_steps(hooks)
            result = end(trainer, started)
        barrier(world)
    return result


class Trainer:
    """One run: the model and all that belongs to it. Hooks may read everything, and set `stop`."""

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        run: Path,
        seed: int,
        world: World,
        report: ProgressBars,
    ) -> None:
        self.task, self.config, self.run, self.seed = task, config, run, seed
        self.world, self.report = world, report
        # Across a run, what a checkpoint holds besides weights and optimizer:
        self.step = 0
        self.pending: list[tuple[int, list[str], torch.Tensor]] = []  # steps not yet logged
        self.detector = DivergenceDetector(config.divergence_ratio, config.divergence_patience)
        self.best: list[dict[str, Any]] = []
        self.metrics: dict[str, float] = {}
        # Of this process only:
        self.losses: list[float] = []  # of the steps last logged
        self.stop: Stop | None = None
        self.interrupt = Interrupt(report.say)
        self.metrics_logger: MetricsLogger | None = None
        self._build_batches()
        self._build_model()

    def _build_batches(self) -> None:
        config, world = self.config, self.world
        accumulated = config.gradient_accumulation_steps
        self.parts = world.world_size * accumulated
        if config.batch_size < self.parts:
            raise ValueError(
                f"training.batch_size ({config.batch_size}) is less than world size x "
                f"gradient_accumulation_steps ({world.world_size} x {accumulated})"
            )
        first = world.rank * accumulated
        self.wanted = list(range(first, first + accumulated))
        self.stream = self.task.train_stream(config.batch_size, self.seed)
        self.batches = Prefetch(
            self.stream, self.parts, self.wanted, pin=world.device.type == "cuda"
        )
        self.stream_state = self.stream.state_dict()
        self.logged: dict[str, Any] = {"step": 0, "stream": self.stream_state}

    def _build_model(self) -> None:
        config, world = self.config, self.world
        torch.manual_seed(self.seed)
        model = self.task.build_model().to(world.device).train()
        another = self.task.train_stream(config.batch_size, self.seed)
        sample = to_device(another.next(self.parts, self.wanted)[0], world.device)
        flops = count_flops(self.task, model, sample, config.precision)
        self.throughput = Throughput(flops, peak_flops(world.device, config.precision))
        self.model = distribute_model(model, world)
        if config.compile:
            self.model.compile()
        self.optimizer = build_optimizer(self.model, config)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.average = WeightAverage(self.model, config.ema_decay) if config.ema_decay else None

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
        self.throughput.read(self.world.world_size)  # building and loading are not training
        while self.step < config.steps and self.stop is None:
            pieces, self.stream_state = next(batches)
            self.train_step(pieces)
            for hook in every:
                if self.stop is None and hook.due(self.step, config.steps):
                    hook.function(self)
            if self.stop is None and self.step < config.steps and self.interrupted():
                self.stop = Stop("interrupted", "asked to stop by a signal")

    def train_step(self, pieces: list[Any]) -> None:
        """Take one optimizer step; nothing in it waits for the device."""
        torch.manual_seed(step_seed(self.seed, self.step, self.world.rank))
        sums, names = accumulate(self.task, self.model, pieces, self.config, self.world)
        norm = scale_gradients(self.parameters, sums[1], self.config.clip_norm, self.world)
        set_learning_rate(self.optimizer, learning_rate(self.config, self.step))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average:
            self.average.update()
        self.step += 1
        values = torch.cat((sums, norm.float().reshape(1)))
        self.pending.append((self.step, [*names, "gradient_norm"], values))
        self.throughput.add(sum(self.task.size(piece) for piece in pieces))

    def interrupted(self) -> bool:
        """Return whether to stop now. Several ranks ask each other at log time only: it waits."""
        if self.world.world_size == 1:
            return self.interrupt.wanted
        at_log = self.step % self.config.log_every == 0
        return at_log and any_rank(self.interrupt.wanted, self.world)

    def read_pending(self) -> list[dict[str, Any]]:
        """Return the steps not yet logged as plain numbers; this waits for the device, once."""
        if not self.pending:
            return []
        table = torch.stack([values for _, _, values in self.pending]).tolist()
        return [
            {"step": step, **dict(zip(names, row, strict=True))}
            for (step, names, _), row in zip(self.pending, table, strict=True)
        ]

    def add_row(self, row: dict[str, Any]) -> None:
        """Write a row of metrics (the main process only)."""
        if self.metrics_logger is not None:
            self.metrics_logger.add(row)

    def close(self) -> None:
        """Stop the batch thread and close the records."""
        self.batches.close()
        self.report.finish()
        if self.metrics_logger is not None:
            self.metrics_logger.close()
