"""The training loop. It knows `magneto.training.task` and nothing of what is trained.

Every step takes the gradient of a summed loss over micro-batches and ranks and divides it by one
count, so that cutting a batch differently changes nothing. Randomness is a function of (seed, step,
rank). What happens every so many steps is a hook. A run can be killed at any moment: it goes on
from its newest whole checkpoint and ends where it would have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from magneto.data.workers import BatchesAhead
from magneto.progress import ProgressBars
from magneto.training import hooks as periodic
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    World,
    all_reduce_sum,
    any_rank,
    barrier,
    broadcast_from_main,
    join_world,
    main_process_first,
)
from magneto.training.divergence import DivergenceDetector
from magneto.training.ema import WeightAverage
from magneto.training.ending import TrainingResult, end
from magneto.training.freed_memory import keep_freed_memory
from magneto.training.hooks import Hook
from magneto.training.initial import initial_model, values_from_data
from magneto.training.interrupt import Interrupt
from magneto.training.length import in_steps
from magneto.training.memory import check_memory
from magneto.training.optimizer import build_optimizer, set_learning_rate
from magneto.training.resume import begin
from magneto.training.schedule import learning_rate
from magneto.training.sharding import unwrap
from magneto.training.state import Stop, TrainingState
from magneto.training.step import accumulate, scale_gradients, step_seed
from magneto.training.task import Task, place_companion, why_not
from magneto.training.throughput import Throughput, count_flops, peak_flops
from magneto.training.writer import Writer


def train(
    task: Task,
    config: TrainingConfig,
    run: Path,
    *,
    seed: int,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    report: ProgressBars | None = None,
    recipe: Mapping[str, Any] | None = None,
    keep_recipe: Callable[[], None] = lambda: None,
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
        recipe: What the run is made of, as plain values by section. Checkpoints keep it, and a run
            is not resumed with another task, model, data or seed.
        keep_recipe: Called by the main process when nothing can refuse any more, before anything
            else is written in `run`.

    Returns:
        How it ended; the same is written to result.json. A run that has finished already, and is
        resumed for no more steps, is left as it is.

    Raises:
        ValueError: If there is no learning rate, the batch is too small to be cut, the device or
            the ranks asked for are not there, `run` holds a run that was not to be resumed, or one
            that began with another recipe or other data.
        FileNotFoundError: If `run` vanishes while it trains.
    """
    started = time.perf_counter()
    learning_rate(config, 0)
    if refused := why_not(task, config.distributed):
        raise ValueError(refused)
    if config.threads:
        torch.set_num_threads(config.threads)
    with join_world(config) as world, keep_freed_memory(world.device):
        main = world.is_main_process
        report = report if report and main else ProgressBars(quiet=not main)
        # A name made of the time would differ, and the main process may have begun the run.
        run, resume = broadcast_from_main((run, resume), world)
        with main_process_first(world):
            task.prepare(report)  # what is wrong with the data is known before a thing is written
            check_memory(task, config, world, seed)
            run.mkdir(parents=True, exist_ok=True)
        state = begin_state(task, config, run, seed, world, report)
        state.recipe = recipe or {}
        with closing(state), state.interrupt:
            result = begin(state, resume, keep_recipe)
            if result is None:
                with main_process_first(world):  # what all have met is written once
                    task.problems.keep_in(run, report)
                if state.step == 0:
                    wanted, parts = own_parts(config, world)
                    values_from_data(task, state.model, state.stream, parts, wanted, world)
                    if state.average:
                        state.average.take()
                run_steps(state, hooks)
                result = end(state, started)
        del state  # DDP's model must be gone before the processes part
        barrier(world)
    return result


def begin_state(
    task: Task, config: TrainingConfig, run: Path, seed: int, world: World, report: ProgressBars
) -> TrainingState:
    """Build model, optimizer and batches, before any step."""
    wanted, parts = own_parts(config, world)
    stream = task.train_stream(config.batch_size, seed)
    config = in_steps(config, stream.examples)
    sample = stream.batch(0, parts, wanted)[0]
    flops, units = count_flops(task, sample, config.precision)
    place_companion(task, world.device)
    throughput = Throughput(flops / units, peak_flops(world.device, config.precision))
    model = initial_model(task, seed, world, report.say)
    if config.compile:
        model.compile()
    return TrainingState(
        task=task,
        config=config,
        run=run,
        seed=seed,
        world=world,
        report=report,
        model=model,
        parameters=[p for p in model.parameters() if p.requires_grad],
        optimizer=build_optimizer(unwrap(model), config, task.rate_multipliers(unwrap(model))),
        average=WeightAverage(model, config.ema_decay) if config.ema_decay else None,
        stream=stream,
        batches=BatchesAhead(
            stream,
            parts,
            wanted,
            pin=world.device.type == "cuda",
            num_workers=config.num_workers,
        ),
        throughput=throughput,
        writer=Writer(world, config.async_save),
        detector=DivergenceDetector(config.divergence_ratio, config.divergence_patience),
        interrupt=Interrupt(report.say),
    )


def own_parts(config: TrainingConfig, world: World) -> tuple[list[int], int]:
    """Return which pieces of a batch are this rank's, and in how many it is cut.

    Raises:
        ValueError: If the batch has fewer examples than pieces.
    """
    accumulated = config.gradient_accumulation_steps
    parts = world.world_size * accumulated
    if config.batch_size < parts:
        raise ValueError(
            f"training.batch_size ({config.batch_size}) is less than world size x "
            f"gradient_accumulation_steps ({world.world_size} x {accumulated})"
        )
    first = world.rank * accumulated
    return list(range(first, first + accumulated)), parts


def run_steps(state: TrainingState, hooks: Sequence[Hook]) -> None:
    """Take steps until the last one, or until something stops the run."""
    config = state.config
    every = [
        Hook(config.log_every, periodic.log),
        *hooks,
        Hook(config.evaluate_every, periodic.evaluate),
        Hook(config.save_every, periodic.save),
    ]
    batches = state.batches.start(state.step)
    state.throughput.read(state.world.world_size)  # building and loading are not training
    while state.step < config.steps and state.stop is None:
        train_step(state, next(batches))
        for hook in every:
            # A step that a hook stops at still owes its evaluation: no later one makes up for it.
            if not diverged(state) and hook.due(state.step, config.steps):
                hook.function(state)
        if state.stop is None and state.step < config.steps and interrupted(state):
            state.stop = Stop("interrupted", "asked to stop by a signal")


def diverged(state: TrainingState) -> bool:
    """Return whether the run has ended with weights that are not worth an evaluation."""
    return state.stop is not None and state.stop.status == "diverged"


def train_step(state: TrainingState, pieces: list[Any]) -> None:
    """Take one optimizer step; nothing in it waits for the device."""
    task, config, world, model = state.task, state.config, state.world, state.model
    torch.manual_seed(step_seed(state.seed, state.step, world.rank))
    sums, names, units = accumulate(task, model, pieces, config, world)
    norm = scale_gradients(state.parameters, sums[1], config.clip_norm, world)
    set_learning_rate(state.optimizer, learning_rate(config, state.step))
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        task.end_step(unwrap(model), partial(all_reduce_sum, world=world))
    if state.average:
        state.average.update()
    state.step += 1
    values = torch.cat((sums, norm.float().reshape(1)))
    state.pending.append((state.step, [*names, "gradient_norm"], values))
    state.throughput.add(units)


def interrupted(state: TrainingState) -> bool:
    """Return whether to stop now. Several ranks ask each other at log time only: it waits."""
    if state.world.world_size == 1:
        return state.interrupt.wanted
    at_log = state.step % state.config.log_every == 0
    return at_log and any_rank(state.interrupt.wanted, state.world)
