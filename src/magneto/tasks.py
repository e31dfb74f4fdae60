"""Table of tasks. A task's module, which imports torch, is imported when the task is used."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TaskEntry:
    """Import path of a task, the names of its two configurations, and its commands.

    Attributes:
        task: A `magneto.training.task.Task`, as "package.module:Class".
        configs: Names of the classes of a recipe's sections `model` and `data` in package.config,
            which imports no torch.
        verbs: Commands for its runs, as typed after `magneto` but without the run. The user
            replaces the words in capitals. `evaluate` and `report` work for every task.
        reads: Input of `Task.predict` in `magneto predict`: "images", "texts" or "rows" of tables.
            Any other word, such as "question", names the text that follows the images.
        plateau_batches: Validation batches for the baseline that a pre-trained encoder must beat
            before fine-tuning (see `warn_unlearnt`); 0 for tasks that pre-train no encoder.
    """

    task: str
    configs: tuple[str, str]
    verbs: tuple[str, ...] = ()
    reads: str = "images"
    plateau_batches: int = 0


TASKS = {
    "causal-lm": TaskEntry(
        "magneto.language.causal_lm:CausalLanguageModeling",
        ("LanguageModelConfig", "TextDataConfig"),
        verbs=("generate", "evaluate --tasks SUITE"),
    ),
    "masked-lm": TaskEntry(
        "magneto.language.masked_lm:MaskedLanguageModeling",
        ("MaskedLanguageModelConfig", "MaskedTextDataConfig"),
        plateau_batches=20,
    ),
    "text-classification": TaskEntry(
        "magneto.language.classification:TextClassification",
        ("TextClassifierConfig", "ClassificationDataConfig"),
        verbs=("predict",),
        reads="texts",
    ),
    "translation": TaskEntry(
        "magneto.translation.task:Translation",
        ("TranslationConfig", "ParallelDataConfig"),
        verbs=("translate --to LANGUAGE",),
    ),
    "transducer": TaskEntry(
        "magneto.speech.task:SpeechRecognition",
        ("TransducerConfig", "SpeechDataConfig"),
        verbs=("transcribe RECORDING",),
    ),
    "image-classification": TaskEntry(
        "magneto.vision.classification:ImageClassification",
        ("ImageClassifierConfig", "ImageClassificationDataConfig"),
        verbs=("predict IMAGE", "evaluate --features"),
        plateau_batches=64,
    ),
    "image-modelling": TaskEntry(
        "magneto.vision.masked_modelling:ImageModelling",
        ("ImageModelConfig", "ImageModellingDataConfig"),
        verbs=("evaluate --features",),
        plateau_batches=4,
    ),
    "image-tokenizer": TaskEntry(
        "magneto.vision.tokenizer:ImageTokenization",
        ("ImageTokenizerConfig", "ImageDataConfig"),
        verbs=("train image-modelling/tiny --data.image_tokenizer",),
    ),
    "segmentation": TaskEntry(
        "magneto.vision.segmentation:Segmentation",
        ("SegmenterConfig", "SegmentationDataConfig"),
        verbs=("predict IMAGE",),
    ),
    "visual-question-answering": TaskEntry(
        "magneto.vision_language.question_answering:QuestionAnswering",
        ("QuestionAnsweringConfig", "QuestionAnsweringDataConfig"),
        verbs=('predict IMAGE "QUESTION"',),
        reads="question",
    ),
    "vision-language-modelling": TaskEntry(
        "magneto.vision_language.pretraining:MaskedDataModelling",
        ("MaskedDataModelConfig", "MaskedDataConfig"),
        plateau_batches=4,
    ),
    "visual-reasoning": TaskEntry(
        "magneto.vision_language.reasoning:VisualReasoning",
        ("VisualReasonerConfig", "StatementDataConfig"),
        verbs=('predict LEFT RIGHT "STATEMENT"',),
        reads="statement",
    ),
    "image-text-retrieval": TaskEntry(
        "magneto.vision_language.retrieval:ImageTextRetrieval",
        ("ImageTextRetrieverConfig", "RetrievalDataConfig"),
        verbs=('search "TEXT" FOLDER',),
    ),
    "image-captioning": TaskEntry(
        "magneto.vision_language.captioning:ImageCaptioning",
        ("ImageCaptionerConfig", "CaptioningDataConfig"),
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
