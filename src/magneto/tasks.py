"""Table of tasks. A task's module, which imports torch, is imported when the task is used."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TaskEntry:
    """Import paths of a task and its two configurations ("module:Class"), and its commands.

    Attributes:
        task: A `magneto.training.task.Task`.
        model_config: Dataclass of a recipe's `model` section; its module imports no torch.
        data_config: Dataclass of the `data` section; its module imports no torch.
        verbs: Commands for its runs, as typed after `magneto` but without the run. The user
            replaces the words in capitals. `evaluate` and `report` work for every task.
        reads: Input of `Task.predict` in `magneto predict`: "images", "texts" or "rows" of tables.
            Any other word, such as "question", names the text that follows the images.
        plateau_batches: Validation batches for the baseline that a pre-trained encoder must beat
            before fine-tuning (see `warn_unlearnt`); 0 for tasks that pre-train no encoder.
    """

    task: str
    model_config: str
    data_config: str
    verbs: tuple[str, ...] = ()
    reads: str = "images"
    plateau_batches: int = 0


TASKS = {
    "causal-lm": TaskEntry(
        "magneto.language.causal_lm:CausalLanguageModeling",
        "magneto.language.config:LanguageModelConfig",
        "magneto.language.config:TextDataConfig",
        verbs=("generate", "evaluate --tasks SUITE"),
    ),
    "masked-lm": TaskEntry(
        "magneto.language.masked_lm:MaskedLanguageModeling",
        "magneto.language.config:MaskedLanguageModelConfig",
        "magneto.language.config:MaskedTextDataConfig",
        plateau_batches=20,
    ),
    "text-classification": TaskEntry(
        "magneto.language.classification:TextClassification",
        "magneto.language.config:TextClassifierConfig",
        "magneto.language.config:ClassificationDataConfig",
        verbs=("predict",),
        reads="texts",
    ),
    "translation": TaskEntry(
        "magneto.translation.task:Translation",
        "magneto.translation.config:TranslationConfig",
        "magneto.translation.config:ParallelDataConfig",
        verbs=("translate --to LANGUAGE",),
    ),
    "transducer": TaskEntry(
        "magneto.speech.task:SpeechRecognition",
        "magneto.speech.config:TransducerConfig",
        "magneto.speech.config:SpeechDataConfig",
        verbs=("transcribe RECORDING",),
    ),
    "image-classification": TaskEntry(
        "magneto.vision.classification:ImageClassification",
        "magneto.vision.config:ImageClassifierConfig",
        "magneto.vision.config:ImageClassificationDataConfig",
        verbs=("predict IMAGE", "evaluate --features"),
        plateau_batches=64,
    ),
    "image-modelling": TaskEntry(
        "magneto.vision.masked_modelling:ImageModelling",
        "magneto.vision.config:ImageModelConfig",
        "magneto.vision.config:ImageModellingDataConfig",
        verbs=("evaluate --features",),
        plateau_batches=4,
    ),
    "image-tokenizer": TaskEntry(
        "magneto.vision.tokenizer:ImageTokenization",
        "magneto.vision.config:ImageTokenizerConfig",
        "magneto.vision.config:ImageDataConfig",
        verbs=("train image-modelling/tiny --data.image_tokenizer",),
    ),
    "segmentation": TaskEntry(
        "magneto.vision.segmentation:Segmentation",
        "magneto.vision.config:SegmenterConfig",
        "magneto.vision.config:SegmentationDataConfig",
        verbs=("predict IMAGE",),
    ),
    "visual-question-answering": TaskEntry(
        "magneto.vision_language.question_answering:QuestionAnswering",
        "magneto.vision_language.config:QuestionAnsweringConfig",
        "magneto.vision_language.config:QuestionAnsweringDataConfig",
        verbs=('predict IMAGE "QUESTION"',),
        reads="question",
    ),
    "vision-language-modelling": TaskEntry(
        "magneto.vision_language.pretraining:MaskedDataModelling",
        "magneto.vision_language.config:MaskedDataModelConfig",
        "magneto.vision_language.config:MaskedDataConfig",
        plateau_batches=4,
    ),
    "visual-reasoning": TaskEntry(
        "magneto.vision_language.reasoning:VisualReasoning",
        "magneto.vision_language.config:VisualReasonerConfig",
        "magneto.vision_language.config:StatementDataConfig",
        verbs=('predict LEFT RIGHT "STATEMENT"',),
        reads="statement",
    ),
    "image-text-retrieval": TaskEntry(
        "magneto.vision_language.retrieval:ImageTextRetrieval",
        "magneto.vision_language.config:ImageTextRetrieverConfig",
        "magneto.vision_language.config:CaptionDataConfig",
        verbs=('search "TEXT" FOLDER',),
    ),
    "image-captioning": TaskEntry(
        "magneto.vision_language.captioning:ImageCaptioning",
        "magneto.vision_language.config:ImageCaptionerConfig",
        "magneto.vision_language.config:CaptioningDataConfig",
        verbs=("generate IMAGE",),
    ),
}
"""Tasks by the name in a recipe's `task` field."""


def command(verb: str, run: Path) -> str:
    """Return the command line for one of `TaskEntry.verbs` and a run."""
    first, _, further = verb.partition(" ")
    place = shlex.quote(str(run))
    words = (verb, place) if first == "train" else (first, place, further)
    return " ".join(["magneto", *filter(None, words)])
