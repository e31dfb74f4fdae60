"""Small tasks: of drawn scenes by masked data modelling; and what begins with an encoder, on
folders in the layouts of their fields' sets.

python small_tasks.py TASK FOLDER RUN [key=value ...]    trains one; fields of `training`
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, Recipe, config_classes, load_recipe, task_class
from magneto.training.config import TrainingConfig
from magneto.training.logging import TrainingResult
from magneto.training.loop import train
from magneto.weights import open_tensors
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
    write, there, fields = DATA[name]
    if not (folder / there).exists() and "source" not in data:
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
    train(task, config, out, seed=1, resume=resume, report=ProgressBars(quiet=True),
          save_recipe=lambda: recipe.save(out / "recipe.yaml"))  # fmt: skip
    return {name: tensor.read() for name, tensor in open_tensors(out / "final").items()}


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
        report=ProgressBars(quiet=True), save_recipe=lambda: recipe.save(run / RUN_FILE),
        recipe=recipe.to_mapping(),
    )  # fmt: skip


if __name__ == "__main__":
    name, folder, out, *words = sys.argv[1:]
    given: dict[str, Any] = dict(word.split("=") for word in words)
    if name == "vision-language-modelling":
        train_model(Path(out), **{f"training__{key}": value for key, value in given.items()})
    else:
        numbers = {key: int(value) for key, value in given.items() if value.isdigit()}
        run(TASKS[name](Path(folder)), Path(out), **{**given, **numbers})
