"""Make transformers' Auto classes know ours."""

from __future__ import annotations

from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSemanticSegmentation,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForVisualQuestionAnswering,
    AutoModelForZeroShotImageClassification,
    AutoProcessor,
    AutoTokenizer,
)

from magneto.hf.configuration import (
    MagnetoConfig,
    MagnetoEncoderConfig,
    MagnetoImageConfig,
    MagnetoSegmentationConfig,
    MagnetoSeq2SeqConfig,
    MagnetoTransducerConfig,
)
from magneto.hf.encoders import (
    MagnetoEncoderModel,
    MagnetoForMaskedLM,
    MagnetoForSequenceClassification,
)
from magneto.hf.image_processor import MagnetoImageProcessor
from magneto.hf.images import MagnetoForImageClassification
from magneto.hf.modeling import MagnetoForCausalLM
from magneto.hf.segmentation import MagnetoForSemanticSegmentation
from magneto.hf.segmentation_processor import MagnetoSegmentationProcessor
from magneto.hf.sentencepiece_tokenizer import MagnetoSentencePieceTokenizer
from magneto.hf.seq2seq import MagnetoForSeq2SeqLM
from magneto.hf.transducer import MagnetoForTransducer, MagnetoSpeechFeatureExtractor
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
from magneto.hf.vision_language_processor import (
    MagnetoVisionLanguageProcessor,
    MagnetoWholeImageProcessor,
)

FINE_TUNED_CONFIGS = (
    MagnetoQuestionAnsweringConfig, MagnetoVisualReasoningConfig, MagnetoImageTextRetrievalConfig,
    MagnetoImageCaptioningConfig, MagnetoVisionLanguageConfig,
)  # fmt: skip
IMAGE_TEXT_CONFIGS = (MagnetoMaskedDataConfig, *FINE_TUNED_CONFIGS)
TEXT_CONFIGS = (
    MagnetoConfig, MagnetoEncoderConfig, MagnetoSeq2SeqConfig, MagnetoTransducerConfig,
    *IMAGE_TEXT_CONFIGS,
)  # fmt: skip
CONFIGS = (*TEXT_CONFIGS, MagnetoImageConfig, MagnetoSegmentationConfig)
PROCESSORS = (
    (MagnetoImageConfig, MagnetoImageProcessor),
    (MagnetoSegmentationConfig, MagnetoSegmentationProcessor),
    (MagnetoMaskedDataConfig, MagnetoImageProcessor),
    *((config, MagnetoWholeImageProcessor) for config in FINE_TUNED_CONFIGS),
)
MODELS = (
    (AutoModelForCausalLM, MagnetoConfig, MagnetoForCausalLM),
    (AutoModel, MagnetoEncoderConfig, MagnetoEncoderModel),
    (AutoModelForMaskedLM, MagnetoEncoderConfig, MagnetoForMaskedLM),
    (
        AutoModelForSequenceClassification,
        MagnetoEncoderConfig,
        MagnetoForSequenceClassification,
    ),
    (AutoModel, MagnetoTransducerConfig, MagnetoForTransducer),
    (AutoModelForSeq2SeqLM, MagnetoSeq2SeqConfig, MagnetoForSeq2SeqLM),
    (AutoModelForImageClassification, MagnetoImageConfig, MagnetoForImageClassification),
    (
        AutoModelForSemanticSegmentation,
        MagnetoSegmentationConfig,
        MagnetoForSemanticSegmentation,
    ),
    (AutoModel, MagnetoVisionLanguageConfig, MagnetoVisionLanguageModel),
    (AutoModelForPreTraining, MagnetoMaskedDataConfig, MagnetoForMaskedDataModelling),
    (
        AutoModelForVisualQuestionAnswering,
        MagnetoQuestionAnsweringConfig,
        MagnetoForVisualQuestionAnswering,
    ),
    (AutoModel, MagnetoVisualReasoningConfig, MagnetoForVisualReasoning),
    (AutoModel, MagnetoImageTextRetrievalConfig, MagnetoForImageTextRetrieval),
    (
        AutoModelForZeroShotImageClassification,
        MagnetoImageTextRetrievalConfig,
        MagnetoForImageTextRetrieval,
    ),
    (AutoModelForImageTextToText, MagnetoImageCaptioningConfig, MagnetoForImageCaptioning),
)


def register() -> None:
    """Register our classes with transformers' Auto classes; may be called again."""
    for config in CONFIGS:
        AutoConfig.register(config.model_type, config, exist_ok=True)
    for config in TEXT_CONFIGS:  # a directory's own tokenizer_config.json goes before
        AutoTokenizer.register(config, MagnetoSentencePieceTokenizer, exist_ok=True)
    for config, processor in PROCESSORS:
        AutoImageProcessor.register(config, slow_image_processor_class=processor, exist_ok=True)
    for config in IMAGE_TEXT_CONFIGS:
        AutoProcessor.register(config, MagnetoVisionLanguageProcessor, exist_ok=True)
    AutoFeatureExtractor.register(
        MagnetoTransducerConfig, MagnetoSpeechFeatureExtractor, exist_ok=True
    )
    for auto, config, model in MODELS:
        auto.register(config, model, exist_ok=True)
