"""Small tasks over images: recipes cut down, a model for segmentation, and runs of them.

python small.py NAME RUN [key=value ...] trains one, under torchrun too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from magneto.cli import main
from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, Recipe, load_recipe
from magneto.training.logging import TrainingResult
from magneto.training.loop import train
from magneto.training.task import Task, place_companion
from magneto.vision.config import SegmenterConfig
from magneto.vision.models import Segmenter
from magneto.vision.tokenizer import ImageTokenization
from magneto.weights import open_tensors
from tests.unit.vision.image_files import write_colours, write_pairs

TRAINING: dict[str, Any] = {
    "training.batch_size": 32, "training.steps": 8, "training.warmup_steps": 0,
    "training.device": "cpu", "training.tensorboard": False, "training.evaluate_every": 0,
    "training.save_every": 0, "training.schedule": "constant", "training.evaluate_limit": 1,
    # AdamW divides a gradient that is zero but for rounding (a key's bias) by itself, if not by it.
    "training.eps": 1e-3,
}  # fmt: skip
SHAPE: dict[str, Any] = {
    "model.width": 16, "model.layers": 2, "model.heads": 2, "model.ffn_width": 32,
}  # fmt: skip
SEGMENTER: dict[str, Any] = {
    "width": 16, "layers": 4, "heads": 2, "ffn_width": 24, "positions": "learned",
    "max_length": 17, "image_size": 16, "patch_size": 4, "classes": 5, "class_token": "learned",
    "feature_layers": (0, 1, 2, 3), "head_channels": 8, "auxiliary_channels": 8, "stride": 8,
    "pool_scales": (1, 2),
}  # fmt: skip
CLASSIFIER: dict[str, Any] = {
    "width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "positions": "learned", "max_length": 5,
    "image_size": 8, "patch_size": 4, "classes": 3, "class_token": "learned",
}  # fmt: skip
PATCHES: dict[str, Any] = {
    "width": 16, "layers": 3, "heads": 2, "ffn_width": 32, "image_size": 8, "patch_size": 2,
    "channels": 1, "positions": "learned", "max_length": 17, "codes": 12,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "image-classification": {**SHAPE, "data.mixup": 0.8, "data.cutmix": 1.0},
    "image-modelling": {**SHAPE, "model.codes": 16},
    "image-tokenizer": {
        **SHAPE, "model.layers": 1, "model.codes": 16, "model.code_width": 4,
        "model.revive_below": 0.5, "training.steps": 12,
    },
    "segmentation": {
        **{f"model.{name}": value for name, value in SEGMENTER.items()}, "model.head_dropout": 0.0,
        "training.batch_size": 4, "training.learning_rate": 1e-3,
    },
}  # fmt: skip


def small_recipe(name: str, **changes: Any) -> Recipe:
    """The tiny recipe, smaller, with other fields changed (dots as two underscores)."""
    return load_recipe(f"{name}/tiny", {**TRAINING, **SMALL[name], **dotted(changes)})


def dotted(changes: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("__", "."): value for key, value in changes.items()}


def small_task(name: str, **changes: Any) -> Any:
    """A prepared task, its companion placed."""
    task = small_recipe(name, **changes).build_task()
    task.prepare()
    place_companion(task, torch.device("cpu"))
    return task


def built(task: Task) -> Any:
    """The task's model, drawn alike each time."""
    torch.manual_seed(0)
    return task.build_model()


def train_recipe(
    recipe: Recipe, run: Path, resume: bool = False, task: Task | None = None, kept: bool = False
) -> TrainingResult:
    """Train the recipe's task, or one that is built; checkpoints may keep the recipe, too."""
    return train(
        task or recipe.build_task(), recipe.training, run, seed=recipe.seed, resume=resume,
        report=ProgressBars(quiet=True), save_recipe=lambda: recipe.save(run / RUN_FILE),
        recipe=recipe.to_mapping() if kept else None,
    )  # fmt: skip


def train_small(
    name: str, run: Path, resume: bool = False, kept: bool = False, **changes: Any
) -> TrainingResult:
    return train_recipe(small_recipe(name, **changes), run, resume, kept=kept)


SIZES = [(20, 30), (16, 16), (24, 22), (16, 40), (18, 18), (33, 17)]


def striped(name: str, folder: Path) -> dict[str, Any]:
    """Which data a task is tried on: built-in digits; of segmentation, stripes."""
    if name != "segmentation":
        return {}
    if not folder.exists():
        write_pairs(folder, SIZES)
    return {"data__source": str(folder), "data__validation_source": str(folder)}


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in open_tensors(directory).items()}


COLOURS = {
    "n01000001": "red", "n01000002": "lime", "n01000003": "blue", "n01000004": "white",
    "n01000005": "black", "n01000006": "yellow",
}  # fmt: skip
COLOURED = """--model.classes 7 --model.channels 3 --training.batch_size 8 --training.steps 20
--training.warmup_steps 2 --training.learning_rate 2e-2 --training.evaluate_every 0
--training.save_every 0 --training.tensorboard false --training.device cpu""".split()  # noqa: SIM905


def train_classifier(place: Path) -> Path:
    """Train on images of six colours in a folder of images; return the run."""
    images, run = place / "images", place / "run"
    write_colours(images / "train", COLOURS)
    write_colours(images / "val", COLOURS, 2)
    shape = [f"--model.{name}={value}" for name, value in CLASSIFIER.items()]
    words = ["--data", str(images), "--out", str(run), *shape, *COLOURED]
    assert main(["train", "image-classification/tiny", *words]) == 0
    return run


def small_config(**changes: Any) -> SegmenterConfig:
    return SegmenterConfig(**{**SEGMENTER, **changes})


def small_model(**changes: Any) -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(small_config(**changes)).eval()


def leave_codebooks(run: Path) -> None:
    """Let each rank write its codebook beside the run, after every step."""
    moved = ImageTokenization.end_step

    def end_step(self: Any, model: Any, add_up: Any) -> None:
        moved(self, model, add_up)
        kept = model.tokenizer.codebook.state_dict()
        torch.save(kept, run / f"codebook-{os.environ.get('RANK', '0')}.pt")

    ImageTokenization.end_step = end_step  # type: ignore[method-assign]


if __name__ == "__main__":
    leave_codebooks(Path(sys.argv[2]))
    train_small(sys.argv[1], Path(sys.argv[2]), **dict(word.split("=") for word in sys.argv[3:]))
