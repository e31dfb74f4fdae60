"""Small tasks that begin with an encoder, on folders in the layouts of their fields' sets."""

from pathlib import Path
from typing import Any

import torch

from magneto.progress import ProgressBars
from magneto.recipe import Recipe
from magneto.training.config import TrainingConfig
from magneto.training.loop import train
from magneto.vision_language.captioning import ImageCaptioning
from magneto.vision_language.config import (
    CaptionDataConfig,
    CaptioningDataConfig,
    ImageCaptionerConfig,
    ImageTextRetrieverConfig,
    QuestionAnsweringConfig,
    QuestionAnsweringDataConfig,
    StatementDataConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.finetuning import FineTunedTask
from magneto.vision_language.question_answering import QuestionAnswering
from magneto.vision_language.reasoning import VisualReasoning
from magneto.vision_language.retrieval import ImageTextRetrieval
from magneto.weights import open_tensors
from tests.unit.vision_language.folders import write_karpathy, write_nlvr2, write_vqa

SIZES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "max_length": 24}  # fmt: skip
Changes = dict[str, Any] | None


def question_task(folder: Path, model: Changes = None, **data: Any) -> QuestionAnswering:
    if not folder.joinpath("vqa").is_dir() and "source" not in data:
        write_vqa(folder)
    values = {"source": str(folder), "tokenizer": "bytes", "least_answer_count": 1,
              "validation_images": 2, **data}  # fmt: skip
    config = QuestionAnsweringConfig(**{**SIZES, "layers": 2, **(model or {})})
    return QuestionAnswering(config, QuestionAnsweringDataConfig(**values), 1)


def statement_task(folder: Path, model: Changes = None, **data: Any) -> VisualReasoning:
    if not (folder / "dev").is_dir():
        write_nlvr2(folder)
    values = {"source": str(folder), "tokenizer": "bytes", **data}
    config = VisualReasonerConfig(**{**SIZES, **(model or {})})
    return VisualReasoning(config, StatementDataConfig(**values), 1)


def caption_task(folder: Path, model: Changes = None, **data: Any) -> ImageCaptioning:
    if not (folder / "dataset_coco.json").exists():
        write_karpathy(folder)
    values = {"source": str(folder), "tokenizer": "bytes", **data}
    config = ImageCaptionerConfig(**{**SIZES, **(model or {})})
    return ImageCaptioning(config, CaptioningDataConfig(**values), 1)


def retrieval_task(folder: Path, model: Changes = None, **data: Any) -> ImageTextRetrieval:
    if not (folder / "dataset_coco.json").exists():
        write_karpathy(folder)
    values = {"source": str(folder), "tokenizer": "bytes", **data}
    config = ImageTextRetrieverConfig(**{**SIZES, **(model or {})})
    return ImageTextRetrieval(config, CaptionDataConfig(**values), 1)


# By the name of the task.
TASKS: dict[str, Any] = {
    "visual-question-answering": question_task, "visual-reasoning": statement_task,
    "image-captioning": caption_task, "image-text-retrieval": retrieval_task,
}  # fmt: skip


def run(task: FineTunedTask, out: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """Train a task; return its weights.

    Keys' biases have no gradient but rounding, which a small eps would make as large as any other.
    """
    values = {"steps": 4, "batch_size": 4, "learning_rate": 1e-3, "device": "cpu", "eps": 1e-3,
              "tensorboard": False, "schedule": "constant"}  # fmt: skip
    resume = changes.pop("resume", False)
    config = TrainingConfig(**{**values, **changes})
    name = next(key for key, make in TASKS.items() if make.__annotations__["return"] is type(task))
    recipe = Recipe("test", name, 1, task.model_config, task.data_config, config)
    train(task, config, out, seed=1, resume=resume, report=ProgressBars(quiet=True),
          keep_recipe=lambda: recipe.save(out / "recipe.yaml"))  # fmt: skip
    return {name: tensor.read() for name, tensor in open_tensors(out / "final").items()}
