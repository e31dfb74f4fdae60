"""The edge to the Hugging Face ecosystem. Nothing of it is imported before it is used.

An import changes nothing elsewhere: `magneto.hf.register()` is what makes AutoConfig and the Auto
classes of models know ours, and all that `AutoModelForCausalLM.from_pretrained(DIR)` and
`pipeline("text-generation", model=DIR)` need for an exported DIR. It may be called again.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magneto.hf.beam_search import BeamSearch, Translator
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
    from magneto.hf.export import (
        export_images,
        export_model,
        export_segmenter,
        export_text,
        export_transducer,
        export_vision_language,
    )
    from magneto.hf.formats.conversion import load, to_transformers
    from magneto.hf.formats.torch_encoder import from_torch
    from magneto.hf.generation import Sampling, generate
    from magneto.hf.image_processor import MagnetoImageProcessor
    from magneto.hf.images import MagnetoForImageClassification
    from magneto.hf.modeling import MagnetoForCausalLM
    from magneto.hf.registration import register
    from magneto.hf.segmentation import MagnetoForSemanticSegmentation
    from magneto.hf.segmentation_processor import MagnetoSegmentationProcessor
    from magneto.hf.sentencepiece_tokenizer import MagnetoSentencePieceTokenizer
    from magneto.hf.seq2seq import MagnetoForSeq2SeqLM
    from magneto.hf.tokenizer import MASKED, EncoderInput
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

__all__ = [
    "MASKED",
    "BeamSearch",
    "EncoderInput",
    "MagnetoConfig",
    "MagnetoEncoderConfig",
    "MagnetoEncoderModel",
    "MagnetoForCausalLM",
    "MagnetoForImageCaptioning",
    "MagnetoForImageClassification",
    "MagnetoForImageTextRetrieval",
    "MagnetoForMaskedDataModelling",
    "MagnetoForMaskedLM",
    "MagnetoForSemanticSegmentation",
    "MagnetoForSeq2SeqLM",
    "MagnetoForSequenceClassification",
    "MagnetoForTransducer",
    "MagnetoForVisualQuestionAnswering",
    "MagnetoForVisualReasoning",
    "MagnetoImageCaptioningConfig",
    "MagnetoImageConfig",
    "MagnetoImageProcessor",
    "MagnetoImageTextRetrievalConfig",
    "MagnetoMaskedDataConfig",
    "MagnetoQuestionAnsweringConfig",
    "MagnetoSegmentationConfig",
    "MagnetoSegmentationProcessor",
    "MagnetoSentencePieceTokenizer",
    "MagnetoSeq2SeqConfig",
    "MagnetoSpeechFeatureExtractor",
    "MagnetoTransducerConfig",
    "MagnetoVisionLanguageConfig",
    "MagnetoVisionLanguageModel",
    "MagnetoVisionLanguageProcessor",
    "MagnetoVisualReasoningConfig",
    "MagnetoWholeImageProcessor",
    "Sampling",
    "Translator",
    "export_images",
    "export_model",
    "export_segmenter",
    "export_text",
    "export_transducer",
    "export_vision_language",
    "from_torch",
    "generate",
    "load",
    "register",
    "to_transformers",
]

_HOME = {
    "MASKED": "tokenizer",
    "BeamSearch": "beam_search",
    "EncoderInput": "tokenizer",
    "MagnetoConfig": "configuration",
    "MagnetoEncoderConfig": "configuration",
    "MagnetoEncoderModel": "encoders",
    "MagnetoForCausalLM": "modeling",
    "MagnetoForImageCaptioning": "vision_language_heads",
    "MagnetoForImageClassification": "images",
    "MagnetoForImageTextRetrieval": "vision_language_heads",
    "MagnetoForMaskedDataModelling": "vision_language",
    "MagnetoForMaskedLM": "encoders",
    "MagnetoForSemanticSegmentation": "segmentation",
    "MagnetoForSeq2SeqLM": "seq2seq",
    "MagnetoForSequenceClassification": "encoders",
    "MagnetoForTransducer": "transducer",
    "MagnetoForVisualQuestionAnswering": "vision_language_heads",
    "MagnetoForVisualReasoning": "vision_language_heads",
    "MagnetoImageCaptioningConfig": "vision_language_configuration",
    "MagnetoImageConfig": "configuration",
    "MagnetoImageProcessor": "image_processor",
    "MagnetoImageTextRetrievalConfig": "vision_language_configuration",
    "MagnetoMaskedDataConfig": "vision_language_configuration",
    "MagnetoQuestionAnsweringConfig": "vision_language_configuration",
    "MagnetoSegmentationConfig": "configuration",
    "MagnetoSegmentationProcessor": "segmentation_processor",
    "MagnetoSentencePieceTokenizer": "sentencepiece_tokenizer",
    "MagnetoSeq2SeqConfig": "configuration",
    "MagnetoSpeechFeatureExtractor": "transducer",
    "MagnetoTransducerConfig": "configuration",
    "MagnetoVisionLanguageConfig": "vision_language_configuration",
    "MagnetoVisionLanguageModel": "vision_language",
    "MagnetoVisionLanguageProcessor": "vision_language_processor",
    "MagnetoVisualReasoningConfig": "vision_language_configuration",
    "MagnetoWholeImageProcessor": "vision_language_processor",
    "Sampling": "generation",
    "Translator": "beam_search",
    "export_images": "export",
    "export_model": "export",
    "export_segmenter": "export",
    "export_text": "export",
    "export_transducer": "export",
    "export_vision_language": "export",
    "from_torch": "formats.torch_encoder",
    "generate": "generation",
    "load": "formats.conversion",
    "register": "registration",
    "to_transformers": "formats.conversion",
}


def __getattr__(name: str) -> Any:
    """Import a name from its home the first time it is asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'magneto.hf' has no attribute {name!r}")
    try:
        return getattr(import_module(f"magneto.hf.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("magneto"):
            raise
        message = f"magneto.hf needs {error.name}: pip install 'foundation-transformers[hf]'"
        raise ModuleNotFoundError(message, name=error.name) from error
