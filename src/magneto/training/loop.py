"""The training loop. It knows `magneto.training.task` and nothing of what is trained.

Every step takes the gradient of a summed loss over micro-batches and ranks and divides it by one
count, so that cutting a batch differently changes nothing. Randomness is a function of (seed, step,
rank). What happens every so many steps is a hook. A run can be killed at any moment: it goes on
from its newest whole checkpoint and ends where it would have ended.
"""

# The torch._foreach functions have no public names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from magneto.data.stream import to_device
from magneto.data.workers import BatchesAhead
from magneto.progress import ProgressBars
from magneto.training.checkpoint import Writer
from magneto.training.config import TrainingConfig, in_steps, learning_rate
from magneto.training.distributed import (
    World,
    all_reduce_sum,
    any_rank,
    barrier,
    broadcast_from_main,
    is_fsdp,
    join_world,
    local_shard,
    main_process_first,
    unwrap,
)
from magneto.training.ending import TrainingResult, end
from magneto.training.initial import initial_model, values_from_data
from magneto.training.optimizer import WeightAverage, build_optimizer, set_learning_rate
from magneto.training.resources import Throughput, check_memory, count_flops, peak_flops
from magneto.training.resume import begin
from magneto.training.state import Hook, Stop, TrainingState, evaluate, log, save
from magneto.training.task import Loss, Task, place_companion, units_of, why_not
from magneto.training.watch import DivergenceDetector, Interrupt, keep_freed_memory


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
        Hook(config.log_every, log),
        *hooks,
        Hook(config.evaluate_every, evaluate),
        Hook(config.save_every, save),
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


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of one step on one rank, so that no random state need be saved."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def accumulate(
    task: Task, model: nn.Module, pieces: list[Any], config: TrainingConfig, world: World
) -> tuple[Tensor, list[str], int]:
    """Add up gradients of the summed loss over this rank's micro-batches.

    Returns:
        Sums over all ranks (loss, count, and each of the task's logs), on the device; their names;
        and the units of this rank's pieces. Nothing waits for the device.
    """
    sums, names, units = [], [], 0
    for index, piece in enumerate(pieces):
        with exchange(model, index == len(pieces) - 1):
            with torch.autocast(
                world.device.type, torch.bfloat16, enabled=config.precision == "bf16"
            ):
                loss = task.loss(model, to_device(piece, world.device))
            loss.total.backward()
        names = ["loss", "count", *loss.logs]
        sums.append(loss_sums(loss))
        units += units_of(loss, piece)
    return all_reduce_sum(torch.stack(sums).sum(0), world), names, units


def loss_sums(loss: Loss) -> Tensor:
    """Return a loss's sums as one vector: total, count, logs."""
    values = (loss.total, loss.count, *loss.logs.values())
    return torch.stack([value.detach().float() for value in values])


def exchange(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Let ranks exchange gradients in the last micro-batch only."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if is_fsdp(model):
        model.set_requires_gradient_sync(last)
    return nullcontext()


@torch.no_grad()
def scale_gradients(
    parameters: list[nn.Parameter], count: Tensor, clip_norm: float | None, world: World
) -> Tensor:
    """Divide the gradients by the global count, and clip their norm, in one pass.

    Ranks have averaged their gradients of the sum, so they are multiplied by ranks / count.

    Returns:
        The norm before clipping, on the device.
    """
    gradients = [local_shard(p.grad) for p in parameters if p.grad is not None]
    square = torch.stack(torch._foreach_norm(gradients)).square().sum()
    if world.is_sharded:  # each copy's shards give the square once
        square = all_reduce_sum(square, world) / world.replicas
    scale = world.world_size / count.clamp(min=1)
    norm = square.sqrt() * scale
    if clip_norm is not None:
        scale = scale * (clip_norm / (norm + 1e-6)).clamp(max=1)
    torch._foreach_mul_(gradients, scale)
    return norm
