"""Table of tasks.

This module imports no task, and therefore no torch.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TaskEntry:
    """Facts about a task, for code that does not import the task."""

    # Import path of the task, "package.module:Class".
    task: str
    # Names of the configuration classes of the sections `model` and `data`, in package.config.
    configs: tuple[str, str]
    # Commands for the task's runs, without `magneto` and without the run. Words in capitals are
    # placeholders. `evaluate` and `report` work for every task.
    verbs: tuple[str, ...] = ()
    # Input of `magneto predict`, which is "images", "texts" or "rows". Any other word, such as
    # "question", names the text that follows the images.
    reads: str = "images"
    # Number of validation batches that measure the unigram baseline. Tasks that pre-train no
    # encoder have 0.
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
"""Built-in tasks by name."""


def command(verb: str, run: Path) -> str:
    """Return a command line, such as "magneto evaluate RUN" for the verb "evaluate"."""
    first, _, further = verb.partition(" ")
    place = shlex.quote(str(run))
    words = (verb, place) if first == "train" else (first, place, further)
    return " ".join(["magneto", *filter(None, words)])
