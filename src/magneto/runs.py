"""Open a run: its recipe, its task, its model with weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from magneto.recipe import Recipe, open_run
from magneto.training.checkpoint import load_weights
from magneto.training.distributed import pick_device
from magneto.training.task import Task


@dataclass(frozen=True)
class OpenRun:
    """A run, ready to use: the model is in evaluation mode, on its device."""

    recipe: Recipe
    task: Task
    model: nn.Module
    weights: Path


def own_parts(run: Path) -> dict[str, Any]:
    """Return overrides by which a run's model gets what it was trained with.

    That is its tokenizer, whatever has become of the text; and a classifier's classes, in order,
    and weights of its own. So the model is built without training data and without another run.
    """
    found: dict[str, Any] = {}
    if (run / "tokenizer").is_dir():
        found["data.tokenizer"] = str(run / "tokenizer")
    path = run / "labels.json"
    if path.is_file():
        found["data.labels"] = json.loads(path.read_text(encoding="utf-8")) or None
        found["model.pretrained"] = None
    return found


def load_run(run: Path, which: str, overrides: Mapping[str, Any]) -> OpenRun:
    """Open a run with its best, final, averaged or last weights (see `load_weights`).

    Its data is not prepared.

    Raises:
        FileNotFoundError: If there is no run, or no such weights in it.
    """
    recipe = open_run(run, {**own_parts(run), **overrides})
    task = recipe.build_task()
    model = task.build_model()
    weights = load_weights(model, run, which)
    return OpenRun(recipe, task, model.to(pick_device(recipe.training.device)).eval(), weights)
