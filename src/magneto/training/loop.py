"""Training loop of every task (`magneto.training.task`).

A step sums gradients over micro-batches and ranks, and divides the sum by the number of predictions
in the batch. The result does not depend on how a batch is divided. Random numbers depend on (seed,
step, rank) alone. Logging, evaluation and checkpoints are hooks. A killed run resumes from the
newest undamaged checkpoint, and gives the same result as an uninterrupted run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.config import ConfigError
from magneto.data.stream import BatchStream, to_device
from magneto.data.workers import BatchPrefetcher
from magneto.files import check_directory, read_json, read_object
from magneto.progress import ProgressBars
from magneto.training.checkpoint import (
    STATE,
    RunWeights,
    compare_recipe,
    load_checkpoint,
    model_pieces,
    save_checkpoint,
)
from magneto.training.config import TrainingConfig, learning_rate, patience_is_over, resolve_steps
from magneto.training.distributed import (
    Interrupt,
    World,
    all_reduce_sum,
    any_rank,
    barrier,
    broadcast_from_main,
    call_on_main,
    gradient_sync,
    local_parts,
    main_process_first,
    training_process,
    unwrap,
)
from magneto.training.evaluation import DivergenceDetector
from magneto.training.evaluation import evaluate as evaluate_task
from magneto.training.logging import (
    METRICS_FILE,
    RESULT_FILE,
    MetricsLogger,
    PendingStep,
    Throughput,
    TrainingResult,
    end_run,
    mean_of_steps,
    open_trackers,
    peak_flops,
    print_evaluation,
    read_metrics,
    read_steps,
    write_environment,
)
from magneto.training.model import check_memory, count_flops, initial_model, initialise_from_data
from magneto.training.optimizer import (
    WeightAverage,
    all_finite,
    build_optimizer,
    set_learning_rate,
    take_step,
)
from magneto.training.task import (
    NON_FINITE,
    Task,
    count_units,
    install_assets,
    place_companion,
    staged_assets,
    strategy_error,
)
from magneto.weights import NAMED, list_checkpoints


@dataclass(frozen=True)
class Stop:
    """End of a run: status ("finished", "diverged" or "interrupted"), reason and step."""

    status: str
    reason: str = ""
    step: int | None = None


@dataclass(kw_only=True)
class TrainingState:
    """State of a training run. Hooks may read all attributes and may set `stop`."""

    task: Task
    config: TrainingConfig  # with epochs resolved to steps
    run: Path
    seed: int
    world: World
    report: ProgressBars
    model: nn.Module  # wrapped or sharded for the ranks
    parameters: list[nn.Parameter]  # trained ones only
    optimizer: torch.optim.Optimizer
    average: WeightAverage | None
    stream: BatchStream
    batches: BatchPrefetcher
    throughput: Throughput
    weights: RunWeights
    detector: DivergenceDetector
    interrupt: Interrupt
    # Saved in checkpoints, besides weights and optimizer:
    step: int = 0  # completed steps
    pending: list[PendingStep] = field(default_factory=list)  # not yet logged
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    evaluated: int = 0  # step of the last evaluation
    recipe: Mapping[str, Any] = field(default_factory=dict)
    # Of this process only:
    first_step: int = 0  # steps completed before this process started
    saved: int = 0  # step of the newest checkpoint
    losses: list[float] = field(default_factory=list)  # per step, since the last log
    stop: Stop | None = None
    metrics_logger: MetricsLogger | None = None  # on the main process only

    def add_row(self, row: dict[str, Any]) -> None:
        if self.metrics_logger is not None:
            self.metrics_logger.add(row)

    def mark_diverged(self, reason: str, step: int) -> None:
        """Stop the run, and record that it diverged at `step` (counted from 1).

        If the run is already marked as diverged, nothing changes.
        """
        if self.stop is None or self.stop.status == "interrupted":
            self.stop = Stop("diverged", reason, step)

    def close(self) -> None:
        self.batches.close()
        self.report.finish()
        if self.metrics_logger is not None:
            self.metrics_logger.close()


@dataclass(frozen=True)
class Hook:
    """Function that the training loop calls regularly and after the final step.

    Attributes:
        every: Number of steps between calls, or 0 for a single call after the final step.
        function: Function whose argument is the run's state. The function may set `state.stop` to
            end the run.
    """

    every: int
    function: Callable[[TrainingState], None]

    def due(self, step: int, last: int) -> bool:
        return step == last or (self.every > 0 and step % self.every == 0)


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
    save_recipe: Callable[[], None] = lambda: None,
) -> TrainingResult:
    """Train a task's model in the directory `run`, which is created if missing.

    Args:
        task: Task with data, model and loss.
        config: Settings of the training loop.
        run: Directory of checkpoints and logs.
        seed: Seed of weights, data order and dropout.
        resume: True to start from the newest undamaged checkpoint in `run`.
        hooks: Hooks that are called after logging and before evaluation.
        report: Progress display. The default display writes to stderr.
        recipe: Sections of the recipe, as plain values. Checkpoints contain them, and a run can't
            be resumed with another task, model, data or seed.
        save_recipe: Function that the main process calls after all checks, before the first write.

    Returns:
        The result, which is also written to result.json. If the run is already finished, the stored
        result is returned.

    Raises:
        ValueError: If the learning rate is missing.
        ValueError: If the device is not available.
        ValueError: If `config.distributed` does not suit the task or torchrun's processes.
        ValueError: If a batch has fewer examples than micro-batches.
        ValueError: If `run` has checkpoints, but `resume` is False or the recipe differs.
        FileNotFoundError: If `run` is removed during training.
    """
    started = time.perf_counter()
    learning_rate(config, 0)
    if problem := strategy_error(task, config.distributed):
        raise ValueError(problem)
    with training_process(config) as world:
        local_parts(config, world)  # refuses too small a batch, before data are read
        main = world.is_main_process
        report = report if report and main else ProgressBars(quiet=not main)
        # Ranks may see another time and another state of the directory.
        run, resume = broadcast_from_main((run, resume), world)
        with main_process_first(world):
            task.prepare(report)  # errors in the data come before anything is written
            check_memory(task, config, world, seed)
            run.mkdir(parents=True, exist_ok=True)
        state = build_state(task, config, run, seed, world, report)
        state.recipe = recipe or {}
        with closing(state), state.interrupt:
            result = begin_run(state, resume, save_recipe)
            if result is None:
                if state.step == 0:
                    initialise_from_data(task, state.model, state.stream, config, world)
                    if state.average:
                        state.average.reset()
                with main_process_first(world):  # ranks that found the same problems list them once
                    task.problems.write_to(run, report)
                run_steps(state, hooks)
                result = finish(state, started)
        del state  # frees DDP's model before the process group ends
        barrier(world)
    return result


def build_state(
    task: Task, config: TrainingConfig, run: Path, seed: int, world: World, report: ProgressBars
) -> TrainingState:
    wanted, parts = local_parts(config, world)
    stream = task.train_stream(config.batch_size, seed)
    config = resolve_steps(config, stream.examples)
    peak, flops, units = peak_flops(world.device, config.precision), math.nan, 1
    if peak is not None:
        flops, units = count_flops(task, stream.batch(0, parts, wanted)[0], config.precision)
    place_companion(task, world.device)
    model = initial_model(task, seed, world, report.say)
    if config.compile:
        model.compile()
    pin, workers = world.device.type == "cuda", config.num_workers
    return TrainingState(
        task=task, config=config, run=run, seed=seed, world=world, report=report, model=model,
        parameters=[p for p in model.parameters() if p.requires_grad],
        optimizer=build_optimizer(unwrap(model), config, task.rate_multipliers(unwrap(model))),
        average=WeightAverage(model, config.ema_decay) if config.ema_decay else None,
        stream=stream,
        batches=BatchPrefetcher(stream, parts, wanted, pin=pin, num_workers=workers),
        throughput=Throughput(flops / units, peak),
        weights=RunWeights(run, config, world, report.say),
        detector=DivergenceDetector(config.divergence_patience),
        interrupt=Interrupt(report.say),
    )  # fmt: skip


def begin_run(
    state: TrainingState, resume: bool, save_recipe: Callable[[], None]
) -> TrainingResult | None:
    """Start a run at step 0 or at the newest undamaged checkpoint, and open the logs.

    All checks come before the first write, so a refused resumption leaves the run unchanged.

    Args:
        state: State at step 0.
        resume: True if an existing run may be resumed.
        save_recipe: Function that is called before the first write.

    Returns:
        The result if the run is already finished, else None. A finished run stays unchanged.

    Raises:
        ValueError: If `resume` is False, but the directory has checkpoints.
        ValueError: If the task, model, data or seed differ from those of the run.
        ValueError: If the run has weights, but no intact checkpoint.
    """
    run, world, say = state.run, state.world, state.report.say
    if (held := call_on_main(world, list_checkpoints, run)) and not resume:
        raise ValueError(
            f"{run} already holds a run with checkpoints up to {held[-1].name}: "
            "resume it (--resume), or train in another directory (--out)"
        )
    directory = state.weights.newest()
    if directory is not None:
        kept = read_object(directory / STATE, "recipe")["recipe"]
        if changes := compare_recipe(run, kept, state.recipe):
            say(f"changed settings: {', '.join(changes)}")
    with staged_assets(state.task, run) if world.is_main_process else nullcontext({}) as assets:
        if resume and (done := call_on_main(world, finished_result, run, state.config)):
            field = "training.patience" if done.reason else "training.steps"
            hint = (
                f"to train longer, raise --{field}"
                if directory
                else "it has no checkpoint to resume from"
            )
            say(f"{run} already finished at step {done.step}; {hint}")
            return done
        if directory is not None:
            load_checkpoint(state, directory)
            say(f"resuming from {directory}, step {state.step}")
        elif resume:
            if held or call_on_main(world, would_lose_weights, run, state.config):
                raise ValueError(
                    f"{run} has no intact checkpoint, and starting from step 0 would overwrite "
                    "its weights: choose another directory (--out)"
                )
            say(f"no intact checkpoint in {run}: starting from step 0")
        count = sum(parameter.numel() for parameter in state.parameters)
        say(f"{count:,} parameters on {world.describe()}")
        if world.is_main_process:
            save_recipe()
            install_assets(assets)
            (run / RESULT_FILE).unlink(missing_ok=True)
            trackers = open_trackers(run, state.step, state.config, state.recipe, say)
            state.metrics_logger = MetricsLogger(run, state.step, trackers)
            write_environment(run)
    return None


def finished_result(run: Path, config: TrainingConfig) -> TrainingResult | None:
    try:
        result = TrainingResult(**read_json(run / RESULT_FILE))
        check_directory(run / "final")
    except (OSError, ValueError, TypeError):
        return None  # no result, or damaged final weights
    best = result.best.get("step", result.step)
    enough = result.step >= config.steps or patience_is_over(config, result.step, best)
    return result if result.status == "finished" and enough else None


def would_lose_weights(run: Path, config: TrainingConfig) -> bool:
    """Return whether a restart would lose weights of a run that has no checkpoint.

    If the run has only the folder `best`, the result is True only if the run went past the step by
    which its first checkpoint should be complete. If the run did not go past this step, a restart
    soon writes `best` again.
    """
    held = [name for name in NAMED if (run / name).exists()]
    if held != ["best"]:
        return bool(held)
    first = config.save_every or config.steps
    if config.async_save:  # a checkpoint is complete when the next one starts
        first *= 2
    rows = read_metrics(run) if (run / METRICS_FILE).exists() else []
    best = read_object(run / "best" / STATE, "step")["step"]
    return max([best, *(row["step"] for row in rows)]) > first


def run_steps(state: TrainingState, hooks: Sequence[Hook]) -> None:
    config = state.config
    late = (Hook(config.evaluate_every, evaluate), Hook(config.save_every, save))
    hooks = [Hook(config.log_every, log), *hooks, *late]
    state.first_step = state.saved = state.step
    if state.evaluated == state.step:
        check_patience(state)  # a run may be killed between its last checkpoint and its result
    elif state.step >= config.steps:  # `steps` was lowered on resumption
        log(state)
        evaluate(state)
    batches = state.batches.start(state.step)
    state.throughput.read(state.world.world_size)  # leaves out the time of building and loading
    while state.step < config.steps and state.stop is None:
        train_step(state, next(batches))
        for hook in hooks:
            # A run stopped by a hook is still evaluated and saved, unless it diverged.
            diverged = state.stop is not None and state.stop.status == "diverged"
            if not diverged and hook.due(state.step, config.steps):
                hook.function(state)
        # Several ranks look for signals at log steps only.
        looks = state.world.world_size == 1 or state.step % config.log_every == 0
        going = state.stop is None and state.step < config.steps
        if going and looks and any_rank(state.interrupt.requested, state.world):
            state.stop = Stop("interrupted", "stopped by a signal")


def train_step(state: TrainingState, micro_batches: list[Any]) -> None:
    """Take one optimizer step. The function does not wait for the device.

    `magneto.lab.short_run.short_run` takes the same step with measurements: change both together.
    """
    task, config, world, model = state.task, state.config, state.world, state.model
    torch.manual_seed(step_seed(state.seed, state.step, world.rank))
    sums, names, units = accumulate(task, model, micro_batches, config, world)
    set_learning_rate(state.optimizer, learning_rate(config, state.step))
    count = sums[1]  # predictions on all ranks, by which `take_step` divides the gradients
    norm = take_step(state.optimizer, state.parameters, count, config.clip_norm, world)
    with torch.no_grad():
        task.end_step(unwrap(model), partial(all_reduce_sum, world=world))
    if state.average:
        state.average.update()
    state.step += 1
    values = torch.cat((sums, norm.float().reshape(1)))
    state.pending.append((state.step, [*names, "gradient_norm"], values))
    state.throughput.add(units)


def step_seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def accumulate(
    task: Task, model: nn.Module, micro_batches: list[Any], config: TrainingConfig, world: World
) -> tuple[Tensor, list[str], int]:
    """Add up the gradients of the summed loss over this rank's micro-batches.

    The function does not wait for the device.

    Returns:
        The tuple (values, names, units). `values` are sums over all ranks, on the device: loss,
        count and the task's logs. `names` has a name for each value. `units` is the number of this
        rank's units, such as tokens (`Task.unit`).
    """
    sums, names, units = [], [], 0
    for index, micro_batch in enumerate(micro_batches):
        with gradient_sync(model, index == len(micro_batches) - 1):
            with world.autocast(config.precision):
                loss = task.loss(model, to_device(micro_batch, world.device))
            loss.total.backward()
        names = ["loss", "count", *loss.logs]
        values = (loss.total, loss.count, *loss.logs.values())
        sums.append(torch.stack([value.detach().float() for value in values]))
        units += count_units(loss, micro_batch)
    return all_reduce_sum(torch.stack(sums).sum(0), world), names, units


def log(state: TrainingState) -> None:
    """Read all new losses from the device, check for divergence, and write a row."""
    steps, state.pending = read_steps(state.pending), []
    if not steps:
        return
    state.losses = []
    for step in steps:
        reason = None
        if step["count"] or not math.isfinite(step["loss"]):
            state.losses.append(step["loss"] / max(step["count"], 1))
            reason = state.detector.update(state.losses[-1])
        elif step.get(NON_FINITE, 0) > 0:
            reason = "every loss in the batch is infinite or NaN"
        if reason:
            state.mark_diverged(reason, step["step"])
    rate, utilisation = state.throughput.read(state.world.world_size)
    row = mean_of_steps(steps) | {
        "learning_rate": learning_rate(state.config, state.step - 1),
        f"{state.task.unit}_per_second": rate,
        "flops_utilisation": utilisation,
        "data_wait_seconds": state.batches.read_wait_seconds(),
    }
    state.add_row(row)
    note = (f"loss {row['loss']:.4g}, {rate:,.0f} {state.task.unit}/s, "
            f"learning rate {row['learning_rate']:.3g}")  # fmt: skip
    state.report.update("training", state.step, state.config.steps, note)


def evaluate(state: TrainingState) -> None:
    """Evaluate the averaged weights, or the model's weights if there is no average.

    Weights with the best primary metric are saved, unless the validation loss is NaN or infinite.
    """
    started, task, step = time.perf_counter(), state.task, state.step
    metrics = state.metrics = run_evaluation(state)
    state.evaluated = step
    state.add_row({"step": step} | {f"validation_{key}": x for key, x in metrics.items()})
    if task.primary_metric not in metrics:
        name = f"{type(task).__name__}.primary_metric {task.primary_metric!r}"
        raise ConfigError([f"{name} is not among the task's metrics: {', '.join(metrics)}"])
    value = metrics[task.primary_metric]
    if not math.isfinite(metrics.get("loss", 0.0)):
        state.mark_diverged(f"the validation loss is {metrics['loss']}", step)
    elif math.isfinite(value):
        pieces = model_pieces(state.model, state.average)
        state.weights.keep_best(step, value, task.higher_is_better, pieces, metrics)
    check_patience(state)
    print_evaluation(state)
    state.throughput.pause(time.perf_counter() - started)


def check_patience(state: TrainingState) -> None:
    best, config = state.weights.best, state.config
    if state.stop is None and best and patience_is_over(config, state.step, best[0]["step"]):
        state.stop = Stop("finished", f"no better validation {state.task.primary_metric} in the "
                                      f"last {config.patience} evaluations")  # fmt: skip


def run_evaluation(state: TrainingState) -> dict[str, float]:
    config = state.config
    with state.average.in_place() if state.average else nullcontext():
        return evaluate_task(
            state.task, state.model, state.world, config.precision, config.evaluate_limit,
            state.report,
        ).metrics  # fmt: skip


def save(state: TrainingState) -> None:
    """Write a checkpoint for an exact resumption, unless the run has diverged."""
    started = time.perf_counter()
    pending = read_steps(state.pending)
    if not all(math.isfinite(step["loss"]) for step in pending):
        log(state)  # marks the divergence
        return
    if not all_finite(state.parameters, state.world):
        state.mark_diverged("the weights are not finite", state.step)
        return
    save_checkpoint(state, pending)
    state.saved = state.step
    state.throughput.pause(time.perf_counter() - started)


def finish(state: TrainingState, started: float) -> TrainingResult:
    weights = state.weights
    state.report.finish()
    if state.stop is not None and state.stop.status != "diverged" and state.saved < state.step:
        save(state)  # may find a divergence
    stop = state.stop or Stop("finished")
    if stop.status == "finished":
        pieces = model_pieces(state.model, state.average)
        state.metrics = weights.save_final(state.step, pieces, state.metrics)
    if stop.status == "diverged":
        values = {"diverged_at": stop.step, "reason": stop.reason, "losses": state.losses}
        # Made again, so that no step keeps its batch.
        batch = state.stream.batch((stop.step or state.step) - 1)[0]
        weights.save_diverged(state.step, model_pieces(state.model), batch, values)
    weights.writer.wait()
    best = weights.best[0] if weights.best else {}
    seconds = time.perf_counter() - started
    result = TrainingResult(
        stop.status, state.step, state.metrics, best, stop.step, stop.reason, seconds
    )
    end_run(state, result)
    return result
