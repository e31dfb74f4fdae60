"""Which of our models of vision and language is which model of transformers."""

from __future__ import annotations

from typing import Any

from magneto.hf.vision_language import MagnetoForMaskedDataModelling, MagnetoVisionLanguageModel
from magneto.hf.vision_language_configuration import (
    MagnetoImageCaptioningConfig,
    MagnetoImageTextRetrievalConfig,
    MagnetoMaskedDataConfig,
    MagnetoQuestionAnsweringConfig,
    MagnetoVisionLanguageConfig,
    MagnetoVisualReasoningConfig,
)
from magneto.hf.vision_language_heads import (
    MagnetoForImageCaptioning,
    MagnetoForImageTextRetrieval,
    MagnetoForVisualQuestionAnswering,
    MagnetoForVisualReasoning,
)
from magneto.vision_language.captioning.model import ImageCaptioner
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.modelling.model import MaskedDataModel
from magneto.vision_language.question_answering.model import QuestionAnswerer
from magneto.vision_language.reasoning.model import VisualReasoner
from magneto.vision_language.retrieval.model import ImageTextRetriever

VISION_LANGUAGE_WRAPPERS: dict[Any, tuple[Any, Any]] = {
    VisionLanguageEncoder: (MagnetoVisionLanguageConfig, MagnetoVisionLanguageModel),
    MaskedDataModel: (MagnetoMaskedDataConfig, MagnetoForMaskedDataModelling),
    QuestionAnswerer: (MagnetoQuestionAnsweringConfig, MagnetoForVisualQuestionAnswering),
    VisualReasoner: (MagnetoVisualReasoningConfig, MagnetoForVisualReasoning),
    ImageTextRetriever: (MagnetoImageTextRetrievalConfig, MagnetoForImageTextRetrieval),
    ImageCaptioner: (MagnetoImageCaptioningConfig, MagnetoForImageCaptioning),
}
"""Configuration and wrapper of each of our models of vision and language."""

VISION_LANGUAGE_AUTO = {
    "MagnetoVisionLanguageModel": "AutoModel",
    "MagnetoForMaskedDataModelling": "AutoModelForPreTraining",
    "MagnetoForVisualQuestionAnswering": "AutoModelForVisualQuestionAnswering",
    "MagnetoForVisualReasoning": "AutoModel",
    "MagnetoForImageTextRetrieval": "AutoModel",
    "MagnetoForImageCaptioning": "AutoModelForImageTextToText",
}
"""By which Auto class each of our wrappers is loaded."""
