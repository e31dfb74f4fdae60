"""Execution of a grid of runs, called cells. The runs are independent. A stopped run can resume.

Workers are processes on this machine or jobs on a cluster. Before a worker trains a cell, the
worker locks the cell. Any number of workers, also on several machines, can share the folder
of a sweep.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from magneto.files import acquire_lock, import_extra, plain, write_json
from magneto.lab.grid import (
    RATE,
    SEED,
    Cell,
    Sweep,
    cell_directory,
    is_done,
    read_result,
    read_sweep,
    refuse_edited,
)
from magneto.lab.outcome import FINISHED, Judge, finite, outcome
from magneto.lab.plan import task_with, without_data
from magneto.lab.probe import ProbeHook
from magneto.mistakes import user_lines
from magneto.progress import SILENT, Progress, ProgressBars
from magneto.recipe import RUN_FILE, Recipe
from magneto.training.config import TrainingConfig, resolve_steps
from magneto.training.distributed import local_parts, pick_device, single_process
from magneto.training.logging import METRICS_FILE, TrainingResult, read_metrics
from magneto.training.loop import Hook, Stop, TrainingState, run_evaluation, train
from magneto.training.model import FillRecorder, check_memory, check_model_memory
from magneto.training.task import ASSETS, Task, staged_assets

# Seconds between updates of the progress.
PROGRESS_SECONDS = 0.5
# Seconds between checks of cells that other workers have locked.
WAIT = 1.0
# Measured steps of a probed cell.
PROBED_STEPS = 6
# Folders of a run with weights. Only the best cell's final weights are kept by default.
WEIGHTS = ("checkpoints", "best", "final", "averaged", "candidates", "diverged")


def check_weights_first(recipe: Recipe) -> None:
    """Check that a model's weights fit in the memory of one process, before data are read.

    A task that a user wrote is not checked here, because the sizes of such a task may depend on the
    data. `magneto.training.model.check_memory` checks a user's task after the data are read.

    Raises:
        ValueError: If the weights do not fit.
    """
    if ":" in recipe.task:
        return
    task = task_with(recipe, without_data(recipe))
    with torch.device("meta"), FillRecorder():
        model = task.build_model()
    check_model_memory(model, recipe.training, single_process(pick_device(recipe.training.device)))


def prepare_task(recipe: Recipe, progress: Progress = SILENT) -> Task:
    """Return a recipe's prepared task. Training must fit in the memory of one process.

    Raises:
        ValueError: If training does not fit in the memory.
    """
    check_weights_first(recipe)
    world = single_process(pick_device(recipe.training.device))
    local_parts(recipe.training, world)
    task = recipe.build_task()
    task.prepare(progress)
    check_memory(task, recipe.training, world, recipe.seed)
    return task


def training_in_steps(recipe: Recipe, task: Task) -> TrainingConfig:
    """Return a recipe's section `training`, with epochs converted to steps.

    `task` must be prepared.
    """
    stream = task.train_stream(recipe.training.batch_size, recipe.seed)
    return resolve_steps(recipe.training, stream.examples)


def prepare_data(folder: Path, sweep: Sweep, progress: Progress = SILENT) -> None:
    """Prepare the data once for all runs.

    Raises:
        ValueError: If the data differ from those of runs that have begun.
    """
    cells = sweep.cells()
    begun = [cell for cell in cells if (cell_directory(folder, cell) / ASSETS).is_dir()]
    task = prepare_task(sweep.load((begun or cells)[0]), progress)
    if begun:
        with staged_assets(task, cell_directory(folder, begun[0])):
            pass


def work(
    folder: Path, device: str | None = None, orphaned: Callable[[], bool] = lambda: False
) -> int:
    """Lock and run cells, until this worker and other workers have finished all cells.

    The worker stops when the parent process has ended, that is, when `orphaned()` is true.

    Returns:
        The number of cells that this worker ran.
    """
    sweep = read_sweep(folder)
    # First seeds first, so that every row and rate has one result before any has two.
    cells = sorted(sweep.cells(), key=lambda cell: str(cell.values.get(SEED, "")))
    count = 0
    while not orphaned():
        left = [cell for cell in cells if not is_done(folder, cell)]
        if not left:
            break
        before = count
        for cell in left:
            if not (lock := acquire_lock(cell_directory(folder, cell))):
                continue
            try:
                if is_done(folder, cell):  # by the previous holder of the lock
                    continue
                if run_cell(folder, sweep, cell, device, orphaned).status == "interrupted":
                    return count
                count += 1
            finally:
                lock.release()
        if count == before:
            time.sleep(WAIT)
    return count


def run_cell(
    folder: Path, sweep: Sweep, cell: Cell, device: str | None, orphaned: Callable[[], bool]
) -> TrainingResult:
    refuse_edited(folder, sweep)
    own = {} if device is None else {"training.device": device}
    recipe = replace(sweep, overrides=sweep.overrides | own).load(cell)
    run = cell_directory(folder, cell)
    task = recipe.build_task()

    initial: dict[str, float] = {}
    hooks: list[Hook] = []
    if sweep.probed:
        task.prepare()
        steps = training_in_steps(recipe, task).steps
        hooks.append(ProbeHook(max(steps // PROBED_STEPS, 2)).hook)

    def check(state: TrainingState) -> None:
        if state.detector.first is not None:
            initial["initial_loss"] = state.detector.first
        if orphaned():
            state.stop = Stop("interrupted", "the parent process has ended")
        elif sweep.race and "raced_at" not in initial and 2 * state.step >= state.config.steps:
            initial["raced_at"] = state.step
            if is_behind(folder, sweep, cell, state.step):
                end_if_learned(state)

    result = train(
        task,
        recipe.training,
        run,
        seed=recipe.seed,
        resume=True,
        hooks=[Hook(recipe.training.log_every, check), *hooks],
        report=ProgressBars(quiet=True),
        recipe=recipe.to_mapping(),
        save_recipe=lambda: recipe.save(run / RUN_FILE),
    )
    if result.status != "interrupted":
        write_json(run / "outcome.json", plain({**outcome(result, run), **initial}))
        if not sweep.keep_weights:
            delete_weights(folder, sweep, task.primary_metric, task.higher_is_better)
    return result


def end_if_learned(state: TrainingState) -> None:
    """Stop a run whose rate is probably not the best (see `is_behind`), if the run has learned.

    A run that has not learned yet must continue, because its rate would otherwise count as failed.
    An evaluation shows whether the run has learned.
    """
    metrics = run_evaluation(state)
    judge = Judge.of_ladder(state.task, state.config.evaluate_limit)
    score = metrics.get(judge.metric)
    if score is not None and math.isfinite(score) and not judge.shortfall(metrics):
        state.metrics = metrics
        reason = (
            f"stopped at step {state.step}, because two larger or two smaller learning rates are "
            "significantly better"
        )
        state.stop = Stop("finished", reason)


def is_behind(folder: Path, sweep: Sweep, cell: Cell, step: int) -> bool:
    """Return whether the cell's learning rate is probably two or more grid steps from the best.

    The result is true if a larger rate is better than the cell's rate and the next larger rate is
    better still, or likewise for smaller rates. A rate is better if its loss is lower by two
    standard errors. Only runs that differ in nothing but the learning rate are compared, batch by
    batch up to `step`.
    """
    rivals = [other for other in sweep.cells()
              if (other.row, other.values[SEED]) == (cell.row, cell.values[SEED])]  # fmt: skip
    rate = float(cell.values[RATE])
    losses = {float(other.values[RATE]): losses_up_to(cell_directory(folder, other), step)
              for other in rivals}  # fmt: skip
    for side in (1, -1):
        near = sorted((r for r in losses if side * r > side * rate), key=lambda r: side * r)
        for nearer, further in pairwise(near):
            if ahead(losses[nearer], losses[rate]) and ahead(losses[further], losses[nearer]):
                return True
    return False


def losses_up_to(run: Path, step: int) -> dict[int, float]:
    """Return a run's training losses between `step / 2` and `step`, or {} if `step` was not logged.

    Steps before `step / 2` are left out, because the losses at different rates hardly differ during
    the warm-up.
    """
    rows = read_metrics(run) if (run / METRICS_FILE).exists() else []
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
    return {s: x for s, x in losses.items() if step / 2 < s <= step} if step in losses else {}


def ahead(first: dict[int, float], second: dict[int, float]) -> bool:
    """Return whether `first` has lower losses than `second`, by more than two standard errors.

    Only steps that `first` and `second` have in common are compared.
    """
    gaps = [second[step] - first[step] for step in first.keys() & second.keys()]
    return len(gaps) > 2 and fmean(gaps) > 2 * stdev(gaps) / math.sqrt(len(gaps))


def delete_weights(folder: Path, sweep: Sweep, metric: str, higher_is_better: bool) -> None:
    """Delete the weights of all finished runs, except the final weights of the best run."""
    # In this order, because another worker may finish a better cell meanwhile.
    done = [cell for cell in sweep.cells() if is_done(folder, cell)]
    best = best_cell(folder, sweep, metric, higher_is_better)
    for cell in done:
        for name in WEIGHTS:
            if (cell, name) != (best, "final"):
                shutil.rmtree(cell_directory(folder, cell) / name, ignore_errors=True)


def best_cell(folder: Path, sweep: Sweep, metric: str, higher_is_better: bool) -> Cell | None:
    """Return the finished run with the best score, or None; of equal scores, the first."""
    scores: list[tuple[float, Cell]] = []
    for cell in sweep.cells():
        found = read_result(folder, cell) or {"status": None}
        score = finite(found.get("metrics", {}).get(metric))
        if found["status"] == FINISHED and score is not None:
            scores.append((-score if higher_is_better else score, cell))
    return min(scores, key=lambda pair: pair[0])[1] if scores else None


def devices() -> list[str]:
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def default_jobs() -> int:
    return len(devices()) or os.cpu_count() or 1


def run_local(folder: Path, sweep: Sweep, jobs: int, progress: Callable[[int, int], None]) -> bool:
    """Run a sweep with `jobs` worker processes. Return whether all cells are finished.

    After Ctrl-C or SIGTERM, each worker saves its run and stops. Workers also stop if the parent
    process was killed.

    Raises:
        ValueError: If every worker ended with an error.
    """
    cells = sweep.cells()
    if all(is_done(folder, cell) for cell in cells):
        return True
    gpus = devices()
    threads = str(max(1, (os.cpu_count() or 1) // max(jobs, 1)))
    commands = [
        [sys.executable, "-m", "magneto.lab.sweep", str(folder)]
        + ([gpus[number % len(gpus)]] if gpus else [])
        for number in range(jobs)
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    # In new sessions, so that signals reach the workers once, through this process.
    processes = [
        subprocess.Popen(command, env=environment, start_new_session=True) for command in commands
    ]
    try:
        with sigterm_as_ctrl_c():
            while any(process.poll() is None for process in processes):
                progress(sum(is_done(folder, cell) for cell in cells), len(cells))
                time.sleep(PROGRESS_SECONDS)
    finally:
        end_all(processes)
    if processes and all(process.returncode for process in processes):
        raise ValueError("the runs stopped, because every worker ended with the error above")
    done = sum(is_done(folder, cell) for cell in cells)
    progress(done, len(cells))
    return done == len(cells)


def end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask running workers to stop, and wait for them. A second Ctrl-C ends the wait."""
    try:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.terminate()
        raise


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that both stop the workers."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_cluster(folder: Path, jobs: int, cluster: str, options: dict[str, Any]) -> list[Any]:
    """Start `jobs` workers through submitit, and return one submitit job per worker.

    A job's `result()` waits until the worker has ended. All machines of the cluster must share the
    folder.
    """
    executor = cluster_executor(folder, cluster, options)
    return [executor.submit(work, folder.resolve()) for _ in range(jobs)]


def cluster_executor(folder: Path, cluster: str, options: dict[str, Any]) -> Any:
    """Return submitit's executor, whose jobs write into `folder`.

    `cluster` is "slurm", or "local" for processes on this machine. `options` are parameters of the
    executor, such as slurm_partition.

    Raises:
        ValueError: If there is no such cluster, or if an option is unknown or has a wrong type.
    """
    submitit = import_extra("submitit", "cluster", "a cluster needs submitit")
    try:
        executor = submitit.AutoExecutor(folder=folder / "jobs", cluster=cluster)
        executor.update_parameters(name="magneto-compare", **options)
    except (AssertionError, NameError, RuntimeError, TypeError) as error:
        raise ValueError(f"--cluster {cluster}: {'; '.join(str(error).splitlines())}") from error
    return executor


def main(words: list[str]) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    parent = os.getppid()
    device = words[1] if len(words) > 1 else None
    work(Path(words[0]), device, orphaned=lambda: os.getppid() != parent)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        lines = user_lines(error)
        if os.environ.get("MAGNETO_TRACEBACK") or not lines:
            raise
        sys.exit("\n".join(f"magneto: {line}" for line in lines))
