"""Train a small model of drawn scenes by masked data modelling.

python trained.py RUN [key=value ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, load_recipe
from magneto.training.logging import TrainingResult
from magneto.training.loop import train

SMALL: dict[str, Any] = {
    "model.width": 16, "model.layers": 2, "model.heads": 2, "model.ffn_width": 32,
    "model.image_size": 24, "model.patch_size": 8, "model.codes": 16, "model.max_length": 40,
    "training.batch_size": 24, "training.steps": 6,
    "training.warmup_steps": 0, "training.device": "cpu", "training.tensorboard": False,
    "training.evaluate_every": 0, "training.evaluate_limit": 1, "training.save_every": 0,
    "training.eps": 1e-3, "training.schedule": "constant", "data.text_length": 16,
}  # fmt: skip


def train_model(
    run: Path, resume: bool = False, task: Any = None, **changes: Any
) -> TrainingResult:
    """Train the tiny recipe, smaller, with other fields changed (dots as two underscores).

    The task may be one that is prepared already, where fields of training alone change.
    """
    given = {key.replace("__", "."): value for key, value in changes.items()}
    recipe = load_recipe("vision-language-modelling/tiny", {**SMALL, **given})
    return train(
        task or recipe.build_task(), recipe.training, run, seed=recipe.seed, resume=resume,
        report=ProgressBars(quiet=True), keep_recipe=lambda: recipe.save(run / RUN_FILE),
        recipe=recipe.to_mapping(),
    )  # fmt: skip


if __name__ == "__main__":
    words: dict[str, Any] = dict(word.split("=") for word in sys.argv[2:])
    train_model(Path(sys.argv[1]), **words)
