"""Open a run: its recipe, its task, its model with weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from magneto.recipe import Recipe, open_run
from magneto.tasks.base import Task
from magneto.training.checkpoint import load_weights
from magneto.training.distributed import pick_device
from magneto.training.progress import Reporter


@dataclass(frozen=True)
class OpenRun:
    """A run, ready to use: the model is in evaluation mode, on its device."""

    recipe: Recipe
    task: Task
    model: nn.Module
    weights: Path


def own_parts(run: Path) -> dict[str, Any]:
    """Return overrides by which a classifier needs neither its training data nor another run.

    It has a tokenizer, its classes in order, and weights of its own.
    """
    path = run / "labels.json"
    if not path.is_file():
        return {}
    return {
        "data.labels": json.loads(path.read_text(encoding="utf-8")) or None,
        "data.tokenizer": str(run / "tokenizer"),
        "model.pretrained": None,
    }


def load_run(run: Path, which: str, overrides: Mapping[str, Any], report: Reporter) -> OpenRun:
    """Open a run with its best, final, averaged or last weights (see `load_weights`).

    Raises:
        FileNotFoundError: If there is no run, or no such weights in it.
    """
    recipe = open_run(run, {**own_parts(run), **overrides})
    task = recipe.build_task()
    task.prepare(report)
    model = task.build_model()
    weights = load_weights(model, run, which)
    return OpenRun(recipe, task, model.to(pick_device(recipe.training.device)).eval(), weights)
