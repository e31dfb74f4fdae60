"""Open a run: its recipe, its task, its model with weights.

Torch is imported when a run is there and is opened: what is wrong with its name is said before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.config import ConfigError
from magneto.fields import free_fields
from magneto.files import read_json, user_path
from magneto.progress import SILENT, Progress
from magneto.recipe import Recipe, open_run, task_class
from magneto.tasks import TASKS, TaskEntry, command
from magneto.training.logging import PLATEAU_FILE

if TYPE_CHECKING:
    from torch import nn

    from magneto.training.evaluation import Evaluation
    from magneto.training.task import Task


@dataclass(frozen=True)
class OpenRun:
    """A run, ready to use: the model is in evaluation mode, on its device."""

    recipe: Recipe
    task: Task
    model: nn.Module
    weights: Path

    def evaluate(self, limit: int | None = None, progress: Progress = SILENT) -> Evaluation:
        """Return metrics and predictions of the validation data, as training measures them.

        Within `magneto.training.distributed.join_world` ranks share the batches; all get the same.

        Args:
            limit: Batches at most.
            progress: Shows it; also that data is prepared.
        """
        from magneto.training.distributed import joined_world, main_process_first
        from magneto.training.evaluation import evaluate
        from magneto.training.task import place_companion

        self.task.problems.progress = progress
        world = joined_world(next(self.model.parameters()).device)
        with main_process_first(world):
            self.task.prepare(progress)
        place_companion(self.task, world.device)
        precision = self.recipe.training.precision
        return evaluate(self.task, self.model, world, precision, limit, progress)


def load_run(
    run: Path, which: str, overrides: Mapping[str, Any], verb: str | None = None
) -> OpenRun:
    """Open a run with its best, final, averaged or last weights (see `load_weights`).

    Its data is not prepared, and what it keeps of its own (its tokenizer, a classifier's classes)
    is used: the model is built without training data and without another run.

    Args:
        run: Its directory.
        which: Weights.
        overrides: Dotted fields of its recipe.
        verb: What it is opened for, if not for any task's runs; see `magneto.tasks`.

    Raises:
        FileNotFoundError: If there is no run, or no such weights in it.
        ConfigError: If its task's runs are not used by the verb; names those that use them.
    """
    recipe, built = open_task(run, overrides, verb)
    built.problems.keep_in(run)
    return load_model(run, which, recipe, built)


def load_model(run: Path, which: str, recipe: Recipe, task: Task) -> OpenRun:
    """Build the model of a task that `open_task` gave, prepared or not, with a run's weights.

    Raises:
        FileNotFoundError: If the run has no such weights.
    """
    from magneto.training.checkpoint import load_weights
    from magneto.training.distributed import pick_device

    model = task.build_model()
    weights = load_weights(model, run, which)
    device = pick_device(recipe.training.device)
    return OpenRun(recipe, task, model.to(device).eval(), weights)


def open_task(
    run: Path, overrides: Mapping[str, Any], verb: str | None = None
) -> tuple[Recipe, Task]:
    """Return a run's recipe and its task, not prepared; see `load_run`."""
    run_task(run, overrides, verb)
    recipe = resolved_recipe(run, overrides)
    return recipe, recipe.build_task()


def resolved_recipe(run: Path, overrides: Mapping[str, Any]) -> Recipe:
    """Return a run's recipe with what its data told: it needs neither data nor another run.

    Raises:
        FileNotFoundError: If there is no run, or it has lost some of that.
        ConfigError: If the recipe is wrong.
    """
    from magneto.training.task import resolved_fields

    return open_run(run, {**resolved_fields(run), **overrides})


def run_tokenizer(run: Path) -> str:
    """Return the directory of the tokenizer that a run keeps.

    Raises:
        FileNotFoundError: If it keeps none.
    """
    from magneto.training.task import resolved_fields

    held = resolved_fields(run)
    if "data.tokenizer" not in held:
        raise FileNotFoundError(f"{run} keeps no tokenizer: give a run of texts that has begun")
    return held["data.tokenizer"]


def run_task(run: Path, overrides: Mapping[str, Any], verb: str | None = None) -> TaskEntry:
    """Return what commands know of a run's task; see `load_run`."""
    name = open_run(run, overrides).task
    task = TASKS.get(name)
    if task is None:
        from magneto.training.task import task_entry

        task = task_entry(name, task_class(name))
    # What a verb wants besides the run follows it, in capitals.
    if verb is not None and not any(f"{known} ".startswith(f"{verb} ") for known in task.verbs):
        right = " or ".join(command(known, run) for known in (*task.verbs, "evaluate"))
        raise ConfigError([f"magneto {verb} has no use for {run}: the run's task is {name}; "
                           f"use {right}"])  # fmt: skip
    return task


def other_data(run: Path, source: str) -> dict[str, Any]:
    """Return the recipe's fields by which a run is measured on all of another source."""
    fields = {"data.source": source}
    if hasattr(open_run(run).data, "validation_source"):
        fields["data.validation_source"] = source
    return fields


def pretrained_run(config: Any) -> Path:
    """Return the directory that a configuration's `pretrained` names, for its placement."""
    return user_path((config.pretrained or "").replace("{placement}", config.row.name))


def check_same_encoder(run: Path, held: Any, config: Any, names: Iterable[str]) -> None:
    """See that a run has the encoder that a configuration describes.

    Args:
        run: Its directory, for the message.
        held: Its model's configuration.
        config: The other one.
        names: Of the encoder's fields; those that are free, or that a run's has not, may differ.

    Raises:
        ValueError: If they differ; names the options that make them alike.
    """
    shared = [name for name in sorted({*names} - free_fields(type(config))) if hasattr(held, name)]
    different = [
        f"--model.{name} {_word(held, name)}"
        for name in shared
        if _word(held, name) != _word(config, name)
    ]
    if different:
        raise ValueError(f"{run} has an encoder of another shape: give {' '.join(different)}")


def _word(config: Any, name: str) -> str:
    """Write a field as the command line takes it; a placement by its name in the table."""
    value = config.row.name if name == "placement" else getattr(config, name)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


# A loss above this share of the plateau's is at the plateau: its place differs by a few hundredths
# with the batches that it is measured on.
AT_PLATEAU = 0.97
# A model that has learnt by heart has a loss as high; but its answers are right more often, by more
# than this share of all.
MORE_RIGHT = 0.02


def warn_unlearnt(run: Path, progress: Progress) -> None:
    """Say it if a run that another begins with has learnt nothing; it goes on all the same."""
    try:
        plateau = read_json(run / PLATEAU_FILE)
        metrics = read_json(run / "result.json")["metrics"]
        level, loss = float(plateau["loss"]), float(metrics["loss"])
        gained = [metrics[name] - plateau[name] for name in plateau if name.endswith("accuracy")]
    except (OSError, ValueError, KeyError, TypeError):
        return  # another kind of run, or one that has not ended
    if loss < AT_PLATEAU * level or any(more > MORE_RIGHT for more in gained):
        return
    progress.say(
        f"warning: the encoder of {run} has learnt nothing but frequencies: its validation loss is "
        f"{loss:.3g}, and {level:.3g} is had without a look at the input; train it longer, or at "
        "another learning rate, before it is fine-tuned"
    )
