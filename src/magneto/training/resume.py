"""How a run begins: from nothing, or resumed from the newest complete checkpoint.

Whatever may refuse comes first; only then is anything written. So a run whose resumption is refused
is left as it was, and a directory without a recipe is no run, and free for another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from magneto.files import clear_aside, read_object
from magneto.training.assets import ASSETS, fitting_assets, put_in_place
from magneto.training.checkpoint import AVERAGE, STATE, fill, load_checkpoint, model_pieces
from magneto.training.distributed import broadcast_from_main
from magneto.training.ending import TrainingResult, finished_result
from magneto.training.logging import (
    METRICS_FILE,
    MetricsLogger,
    open_trackers,
    read_metrics,
    write_environment,
)
from magneto.training.state import TrainingState
from magneto.training.task import DIGEST_FILE
from magneto.weights import NAMED, has_tensors, list_checkpoints, open_tensors, undamaged

# Sections of a recipe that a run keeps as long as it lives.
KEPT = ("task", "seed", "model", "data")
# Where data and its tokenizer lie. They may move: where a run has a digest of the data and the
# tokenizer itself, these are what is compared.
PLACES = ("data.source", "data.validation_source", "data.tokenizer", "data.image_tokenizer")


def begin(
    state: TrainingState, resume: bool, keep_recipe: Callable[[], None]
) -> TrainingResult | None:
    """Load the newest whole checkpoint if asked to, and open the records.

    Args:
        state: Before any step.
        resume: Whether to go on from what the directory holds.
        keep_recipe: Called by the main process before it writes anything else.

    Returns:
        The result of a run that has nothing left to do, which is left as it is; else None.

    Raises:
        ValueError: If the directory holds a run's checkpoints and `resume` was not asked for, or
            what is to be resumed began with another model or other data, or has weights and no
            undamaged checkpoint.
    """
    run, world, say = state.run, state.world, state.report.say
    held = broadcast_from_main(list_checkpoints(run) if world.is_main_process else [], world)
    if held and not resume:
        raise ValueError(
            f"{run} already holds a run with checkpoints up to {held[-1].name}: "
            "resume it (--resume), or train in another directory (--out)"
        )
    directory = broadcast_from_main(newest_whole(state), world)
    if directory is not None:
        compare_recipe(state, directory)
    with fitting_assets(state.task, run) if world.is_main_process else nullcontext({}) as made:
        if resume and (done := broadcast_from_main(finished_result(state), world)):
            more = "for more: --training.steps" if directory else "it keeps no checkpoint"
            say(f"{run} finished at step {done.step} already; {more}")
            return done
        records = None
        if directory is not None:
            records = load(state, directory)["records"]
            say(f"going on from {directory}, step {state.step}")
        elif resume:
            if held or broadcast_from_main(would_lose_weights(state), world):
                raise ValueError(
                    f"{run} has no undamaged checkpoint to go on from, and from step 0 its weights "
                    "would be lost: begin another run (--out)"
                )
            say(f"no whole checkpoint in {run}: starting from step 0")
        count = sum(parameter.numel() for parameter in state.parameters)
        say(f"{count:,} parameters on {world.describe()}")
        if world.is_main_process:
            keep_recipe()
            put_in_place(made)
            (run / "result.json").unlink(missing_ok=True)
            trackers = open_trackers(run, state.step, state.config, state.recipe, say)
            state.metrics_logger = MetricsLogger(run, state.step, trackers)
            if directory is not None and state.metrics_logger.written != records:
                say(f"{run / METRICS_FILE} is not as it was written up to step {state.step}: "
                    "curves made of it are not this run's")  # fmt: skip
            write_environment(run)
    return None


def would_lose_weights(state: TrainingState) -> bool:
    """Return whether a run without checkpoints holds weights that cannot be had again by step 0.

    A start that ended, killed or by a full disk, before its first checkpoint was due may have kept
    its best weights: the next start takes the same steps. Only the main process looks.
    """
    run, config = state.run, state.config
    if not state.world.is_main_process:
        return False
    there = [name for name in NAMED if (run / name).exists()]
    if there != ["best"] or not (run / METRICS_FILE).exists():
        return bool(there)
    first = config.save_every or config.steps
    if config.async_save:  # it is there when the next one begins
        first *= 2
    return max((row["step"] for row in read_metrics(run)), default=first + 1) > first


def newest_whole(state: TrainingState) -> Path | None:
    """Clear what a kill left half-written; return the newest whole checkpoint if there is one.

    Only the main process looks; others return None.
    """
    if not state.world.is_main_process:
        return None
    for directory in (state.run, state.run / "checkpoints", state.run / "candidates"):
        clear_aside(directory)
    state.whole, problems = undamaged(list_checkpoints(state.run))
    for problem in problems:
        state.report.say(f"damaged checkpoint passed over: {problem}")
    return state.whole[-1] if state.whole else None


def compare_recipe(state: TrainingState, directory: Path) -> None:
    """Compare the recipe with the one that a checkpoint was written by; say what is new.

    Raises:
        ValueError: If the task, the model, the data or the seed is another; names the fields.
    """
    kept = read_object(directory / STATE, "recipe")["recipe"]
    now = json.loads(json.dumps(state.recipe, default=str))
    content_is_compared = (state.run / ASSETS / DIGEST_FILE).exists()
    found = {
        name: line
        for name, line in differences(kept, now)
        if not (content_is_compared and name in PLACES)
    }
    wrong = [line for name, line in found.items() if name.partition(".")[0] in KEPT]
    if wrong:
        raise ValueError(
            f"{state.run} began with another recipe: {', '.join(wrong)}; resume it with what it "
            "began with, or begin another run (--out)"
        )
    if found:
        state.report.say(f"changed: {', '.join(found.values())}")


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], where: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, how it differs in words) of what both have and is not equal."""
    for key in before:
        if key not in after or before[key] == after[key]:
            continue
        if isinstance(before[key], Mapping) and isinstance(after[key], Mapping):
            yield from differences(before[key], after[key], f"{where}{key}.")
        else:
            yield f"{where}{key}", f"{where}{key} is {after[key]} (was {before[key]})"


def load(state: TrainingState, directory: Path) -> dict[str, Any]:
    """Put a checkpoint into a run's state; return all that it holds besides tensors."""
    held = load_checkpoint(directory, state.model, state.optimizer)
    load_average(state, directory)
    state.step = held["step"]
    state.detector.load_state_dict(held["detector"])
    state.best, state.metrics = held["best"], held["metrics"]
    for row in held["pending"]:
        step = row.pop("step")
        values = torch.tensor(list(row.values()), device=state.world.device)
        state.pending.append((step, list(row), values))
    return held


def load_average(state: TrainingState, directory: Path) -> None:
    """Fill the average of the weights; where none was kept it begins at the weights as they are."""
    if state.average is None:
        return
    state.average.take()
    if has_tensors(directory, AVERAGE):
        pieces = model_pieces(state.model, state.average)
        fill(pieces, open_tensors(directory, AVERAGE), directory)
