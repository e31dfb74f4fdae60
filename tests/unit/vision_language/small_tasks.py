"""Small tasks: of drawn scenes by masked data modelling; and what begins with an encoder, on
folders in the layouts of their fields' sets.

python small_tasks.py TASK FOLDER RUN [key=value ...]    trains one; fields of `training`
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from magneto.recipe import Recipe, config_classes, load_recipe, task_class
from magneto.training.config import TrainingConfig
from magneto.training.logging import TrainingResult
from tests.unit.vision.small import SHAPE, TRAINING, dotted, tensors, train_recipe
from tests.unit.vision_language.folders import write_karpathy, write_nlvr2, write_vqa

SIZES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "max_length": 24}  # fmt: skip
# By the name of a task: what writes its data, what is there then, and fields of its recipe.
DATA: dict[str, Any] = {
    "visual-question-answering": (
        write_vqa, "vqa", {"least_answer_count": 1, "validation_images": 2}
    ),
    "visual-reasoning": (write_nlvr2, "dev", {}),
    "image-captioning": (write_karpathy, "dataset_coco.json", {}),
    "image-text-retrieval": (write_karpathy, "dataset_coco.json", {}),
}  # fmt: skip


def build(name: str, folder: Path, model: dict[str, Any] | None = None, **data: Any) -> Any:
    """Return a task on a folder, whose data is written unless it is there."""
    write, first_file, fields = DATA[name]
    if not (folder / first_file).exists() and "source" not in data:
        write(folder)
    config, data_config = config_classes(name)
    values = {"source": str(folder), "tokenizer": "bytes", **fields, **data}
    return task_class(name)(config(**{**SIZES, **(model or {})}), data_config(**values), 1)


TASKS: dict[str, Any] = {name: partial(build, name) for name in DATA}
question_task, statement_task, caption_task, retrieval_task = TASKS.values()


def run(task: Any, out: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """Train a task; return its weights.

    Keys' biases have no gradient but rounding, which a small eps would make as large as any other.
    """
    values = {"steps": 4, "batch_size": 4, "learning_rate": 1e-3, "device": "cpu", "eps": 1e-3,
              "tensorboard": False, "schedule": "constant"}  # fmt: skip
    resume = changes.pop("resume", False)
    config = TrainingConfig(**{**values, **changes})
    name = next(name for name in DATA if task_class(name) is type(task))
    recipe = Recipe("test", name, 1, task.model_config, task.data_config, config)
    train_recipe(recipe, out, resume, task)
    return tensors(out / "final")


SMALL: dict[str, Any] = {
    **TRAINING, **SHAPE, "model.layers": 1, "model.image_size": 24, "model.patch_size": 8,
    "model.codes": 16, "model.max_length": 40, "training.batch_size": 24, "training.steps": 6,
    "training.evaluate_limit": 1, "data.text_length": 16,
}  # fmt: skip


def model_recipe(**changes: Any) -> Recipe:
    """The tiny recipe, smaller, with other fields changed (dots as two underscores)."""
    return load_recipe("vision-language-modelling/tiny", {**SMALL, **dotted(changes)})


def train_model(run: Path, resume: bool = False, **changes: Any) -> TrainingResult:
    return train_recipe(model_recipe(**changes), run, resume, kept=True)


if __name__ == "__main__":
    name, folder, out, *words = sys.argv[1:]
    given: dict[str, Any] = dict(word.split("=") for word in words)
    if name == "vision-language-modelling":
        train_model(Path(out), **{f"training__{key}": value for key, value in given.items()})
    else:
        numbers = {key: int(value) for key, value in given.items() if value.isdigit()}
        run(TASKS[name](Path(folder)), Path(out), **{**given, **numbers})
