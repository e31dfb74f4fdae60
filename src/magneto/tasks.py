"""The table of tasks: a line each. Nothing is imported before it is used; no torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskEntry:
    """Where a task and its two configurations are, each as "module:Class".

    Attributes:
        task: A `magneto.training.task.Task`.
        model_config: Dataclass of a recipe's `model` section; its module imports no torch.
        data_config: Dataclass of the `data` section, likewise.
    """

    task: str
    model_config: str
    data_config: str


TASKS = {
    "causal-lm": TaskEntry(
        "magneto.language.causal_lm:CausalLanguageModeling",
        "magneto.language.config:LanguageModelConfig",
        "magneto.language.config:TextDataConfig",
    ),
    "masked-lm": TaskEntry(
        "magneto.language.masked_lm:MaskedLanguageModeling",
        "magneto.language.config:MaskedLanguageModelConfig",
        "magneto.language.config:MaskedTextDataConfig",
    ),
    "text-classification": TaskEntry(
        "magneto.language.classification.task:TextClassification",
        "magneto.language.classification.config:TextClassifierConfig",
        "magneto.language.classification.config:ClassificationDataConfig",
    ),
    "translation": TaskEntry(
        "magneto.translation.task:Translation",
        "magneto.translation.config:TranslationConfig",
        "magneto.translation.config:ParallelDataConfig",
    ),
    "transducer": TaskEntry(
        "magneto.speech.task:SpeechRecognition",
        "magneto.speech.transducer_config:TransducerConfig",
        "magneto.speech.config:SpeechDataConfig",
    ),
    "image-classification": TaskEntry(
        "magneto.vision.classification.task:ImageClassification",
        "magneto.vision.classification.config:ImageClassifierConfig",
        "magneto.vision.classification.config:ImageClassificationDataConfig",
    ),
    "image-modelling": TaskEntry(
        "magneto.vision.modelling.task:ImageModelling",
        "magneto.vision.modelling.config:ImageModelConfig",
        "magneto.vision.modelling.config:ImageModellingDataConfig",
    ),
    "image-tokenizer": TaskEntry(
        "magneto.vision.tokenizer.task:ImageTokenization",
        "magneto.vision.tokenizer.config:ImageTokenizerConfig",
        "magneto.vision.config:ImageDataConfig",
    ),
    "segmentation": TaskEntry(
        "magneto.vision.segmentation.task:Segmentation",
        "magneto.vision.segmentation.config:SegmenterConfig",
        "magneto.vision.segmentation.config:SegmentationDataConfig",
    ),
    "visual-question-answering": TaskEntry(
        "magneto.vision_language.question_answering.task:QuestionAnswering",
        "magneto.vision_language.question_answering.config:QuestionAnsweringConfig",
        "magneto.vision_language.question_answering.config:QuestionAnsweringDataConfig",
    ),
    "vision-language-modelling": TaskEntry(
        "magneto.vision_language.modelling.task:MaskedDataModelling",
        "magneto.vision_language.modelling.config:MaskedDataModelConfig",
        "magneto.vision_language.modelling.config:MaskedDataConfig",
    ),
    "visual-reasoning": TaskEntry(
        "magneto.vision_language.reasoning.task:VisualReasoning",
        "magneto.vision_language.reasoning.config:VisualReasonerConfig",
        "magneto.vision_language.reasoning.config:StatementDataConfig",
    ),
    "image-text-retrieval": TaskEntry(
        "magneto.vision_language.retrieval.task:ImageTextRetrieval",
        "magneto.vision_language.retrieval.config:ImageTextRetrieverConfig",
        "magneto.vision_language.caption_config:CaptionDataConfig",
    ),
    "image-captioning": TaskEntry(
        "magneto.vision_language.captioning.task:ImageCaptioning",
        "magneto.vision_language.captioning.config:ImageCaptionerConfig",
        "magneto.vision_language.captioning.config:CaptioningDataConfig",
    ),
}
"""By the name that a recipe's `task` says."""
