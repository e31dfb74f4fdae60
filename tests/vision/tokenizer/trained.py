"""Train a small visual tokenizer of digits; each rank leaves the codebook that it ends with.

python trained.py RUN [key=value ...]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, load_recipe
from magneto.training.ending import TrainingResult
from magneto.training.loop import train
from magneto.vision.tokenizer import ImageTokenization

SMALL: dict[str, Any] = {
    "model.width": 16, "model.layers": 1, "model.heads": 2, "model.ffn_width": 32,
    "model.codes": 16, "model.code_width": 4, "training.batch_size": 32, "training.steps": 12,
    "training.warmup_steps": 0, "training.device": "cpu", "training.tensorboard": False,
    "training.evaluate_every": 0, "training.save_every": 0, "model.revive_below": 0.5,
    # AdamW divides a gradient that is zero but for rounding (a key's bias) by itself, if not by it.
    "training.eps": 1e-3,
}  # fmt: skip


def train_tokenizer(
    run: Path,
    kind: type[ImageTokenization] = ImageTokenization,
    resume: bool = False,
    **changes: Any,
) -> TrainingResult:
    """Train the tiny recipe, smaller, with other fields changed (dots as two underscores)."""
    given = {key.replace("__", "."): value for key, value in changes.items()}
    recipe = load_recipe("image-tokenizer/tiny", {**SMALL, **given})
    task = kind(recipe.model, recipe.data, recipe.seed)
    return train(
        task, recipe.training, run, seed=recipe.seed, resume=resume,
        report=ProgressBars(quiet=True), keep_recipe=lambda: recipe.save(run / RUN_FILE),
    )  # fmt: skip


class Leaving(ImageTokenization):
    """Writes this rank's codebook beside the run, after every step."""

    run = Path()

    def end_step(self, model: Any, add_up: Callable[[Tensor], Tensor]) -> None:
        super().end_step(model, add_up)
        kept = model.tokenizer.codebook.state_dict()
        torch.save(kept, self.run / f"codebook-{os.environ.get('RANK', '0')}.pt")


if __name__ == "__main__":
    words: dict[str, Any] = dict(word.split("=") for word in sys.argv[2:])
    Leaving.run = Path(sys.argv[1])
    train_tokenizer(Path(sys.argv[1]), Leaving, **words)
