"""Loading of runs: recipe, task, model and weights."""

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
    """A loaded run, with the model in evaluation mode on the recipe's device."""

    recipe: Recipe
    task: Task
    model: nn.Module
    weights: Path

    def evaluate(self, limit: int | None = None, progress: Progress = SILENT) -> Evaluation:
        """Return metrics and predictions on the validation data.

        Within `magneto.training.distributed.join_world`, the ranks share the batches and return the
        same result.

        Args:
            limit: Maximum number of batches.
            progress: Display for data preparation and evaluation.
        """
        from magneto.training.distributed import current_world, main_process_first
        from magneto.training.evaluation import evaluate
        from magneto.training.task import place_companion

        self.task.problems.progress = progress
        world = current_world(next(self.model.parameters()).device)
        with main_process_first(world):
            self.task.prepare(progress)
        place_companion(self.task, world.device)
        precision = self.recipe.training.precision
        return evaluate(self.task, self.model, world, precision, limit, progress)


def load_run(run: Path, which: str, overrides: Mapping[str, Any]) -> OpenRun:
    """Load a run with its task, model and weights.

    The task's data is not loaded. The run's directory contains everything that the model needs.

    Args:
        run: Directory of the run.
        which: Name of the weights, as in `magneto.weights.find_weights`.
        overrides: New values of recipe fields, by dotted name.

    Raises:
        FileNotFoundError: If there is no run, or if the run has no such weights.
    """
    recipe = resolved_recipe(run, overrides)
    task = recipe.build_task()
    task.problems.write_to(run)
    return load_model(run, which, recipe, task)


def load_model(run: Path, which: str, recipe: Recipe, task: Task) -> OpenRun:
    """Build a task's model and load a run's weights.

    The task's data is not needed.
    """
    from magneto.training.distributed import pick_device
    from magneto.weights import find_weights

    weights = find_weights(run, which)  # before the model, which may need a trained tokenizer
    model = task.build_model()
    load_weights(model, weights)
    device = pick_device(recipe.training.device)
    return OpenRun(recipe, task, model.to(device).eval(), weights)


def load_weights(model: nn.Module, directory: Path) -> None:
    """Load the weights in a directory (see `magneto.weights.find_weights`) into a model.

    Raises:
        ValueError: If the weights are damaged, not finite, or of another model.
    """
    from magneto.training.checkpoint import load_pieces, model_pieces
    from magneto.weights import check_finite, open_weights

    load_pieces(model_pieces(model), open_weights(directory), directory)
    check_finite(model.state_dict(), directory)


def resolved_recipe(run: Path, overrides: Mapping[str, Any]) -> Recipe:
    """Return a run's recipe, with the fields that the data determined, such as the tokenizer."""
    open_run(run, overrides)  # reports mistakes before torch is imported
    from magneto.training.task import resolved_fields

    return open_run(run, {**resolved_fields(run), **overrides})


def run_tokenizer(run: Path) -> str:
    """Return the directory of a run's tokenizer, or raise FileNotFoundError."""
    from magneto.training.task import resolved_fields

    fields = resolved_fields(run)
    if "data.tokenizer" not in fields:
        open_run(run)  # a path without a run has its own message
        raise FileNotFoundError(
            f"{run} has no tokenizer. Give a run that trains on text and has started."
        )
    return fields["data.tokenizer"]


def run_task(run: Path, overrides: Mapping[str, Any], verb: str | None = None) -> TaskEntry:
    """Return the `TaskEntry` of a run's task.

    Args:
        run: Directory of the run.
        overrides: New values of recipe fields, by dotted name.
        verb: Command that the task must support, or None for no check.

    Raises:
        FileNotFoundError: If there is no run.
        ConfigError: If the task does not support the command. The message names commands that the
            task supports.
    """
    name = open_run(run, overrides).task
    task = TASKS.get(name)
    if task is None:
        from magneto.training.task import task_entry

        task = task_entry(name, task_class(name))
    if verb is not None and not any(f"{known} ".startswith(f"{verb} ") for known in task.verbs):
        right = " or ".join(command(known, run) for known in (*task.verbs, "evaluate"))
        raise ConfigError([f"magneto {verb} does not support {name}, the task of {run}; "
                           f"use {right}"])  # fmt: skip
    return task


def other_data(run: Path, source: str) -> dict[str, Any]:
    """Return the overrides for evaluating a run on another data source.

    The recipe's `validation_splits` and `image_folder` do not apply to other data. The recipe's
    `validation_limit` applies only to evaluation during training.
    """
    data: Any = open_run(run).data
    held = {"validation_source": source, "validation_splits": None, "validation_limit": None}
    if source != data.source:
        held["image_folder"] = None  # other images with the same names would be read from there
    known = {f"data.{name}": v for name, v in held.items() if hasattr(data, name)}
    return {"data.source": source, **known}


def pretrained_run(config: Any) -> Path:
    """Return the directory that the field `pretrained` names.

    The placement's name replaces "{placement}" in the field.
    """
    return user_path((config.pretrained or "").replace("{placement}", config.row.name))


def check_same_encoder(run: Path, trained: Any, config: Any, names: Iterable[str]) -> None:
    """Check that the fields `names` are equal in a run's model and in a configuration.

    Fields that the run lacks are not compared. Neither are `Free` fields, which do not change what
    a model computes.

    Raises:
        ValueError: If fields differ. The message lists the options to set.
    """
    shared = sorted({*names} - free_fields(type(config)))
    different = [
        f"--model.{name} {_option_value(trained, name)}"
        for name in shared
        if hasattr(trained, name) and _option_value(trained, name) != _option_value(config, name)
    ]
    if different:
        raise ValueError(f"The encoder of {run} differs from the recipe; set {' '.join(different)}")


def _option_value(config: Any, name: str) -> str:
    value = config.row.name if name == "placement" else getattr(config, name)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


# A loss above this share of the baseline's counts as equal to it: the baseline's loss varies by a
# few percent with the batches that it is measured on.
AT_PLATEAU = 0.97
# An overfitted model can have such a loss too, but its accuracy is above the baseline's by more
# than this.
MORE_RIGHT = 0.02


def warn_unlearnt(run: Path, progress: Progress) -> None:
    """Warn if a pre-trained encoder is hardly better than its unigram baseline."""
    try:
        plateau = read_json(run / PLATEAU_FILE)
        metrics = read_json(run / "result.json")["metrics"]
        level, loss = float(plateau["loss"]), float(metrics["loss"])
        gained = [metrics[name] - plateau[name] for name in plateau if name.endswith("accuracy")]
    except (OSError, ValueError, KeyError, TypeError):
        return  # a task without a plateau, or an unfinished run
    if loss < AT_PLATEAU * level or any(more > MORE_RIGHT for more in gained):
        return
    progress.say(
        f"warning: the encoder of {run} is hardly better than its unigram baseline. Its "
        f"validation loss is {loss:.3g}, and token frequencies alone give {level:.3g}. Before "
        "fine-tuning, train the encoder longer or at another learning rate."
    )
