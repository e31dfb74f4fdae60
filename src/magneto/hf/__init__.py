"""Hugging Face integration.

`magneto.hf.register()` lets the library transformers load exported directories. After this call,
`AutoModelForCausalLM.from_pretrained(DIR)` and `pipeline("text-generation", model=DIR)` accept an
exported directory. `import magneto.hf` alone does not register Magneto's classes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magneto.hf.conversion import *  # noqa: F403
    from magneto.hf.export import *  # noqa: F403
    from magneto.hf.generation import *  # noqa: F403
    from magneto.hf.language import *  # noqa: F403
    from magneto.hf.perception import *  # noqa: F403
    from magneto.hf.processors import *  # noqa: F403
    from magneto.hf.wrapper import *  # noqa: F403

HOME = {
    "export": (
        "Assets", "decoder_assets", "encoder_assets", "export_model", "save_export", "wrap",
    ),
    "conversion": ("from_torch", "load", "to_transformers"),
    "generation": ("BeamSearch", "Sampling", "Translator", "generate"),
    "language": (
        "MagnetoEncoderModel", "MagnetoForCausalLM", "MagnetoForMaskedLM", "MagnetoForSeq2SeqLM",
        "MagnetoForSequenceClassification",
    ),
    "perception": (
        "MagnetoForImageCaptioning", "MagnetoForImageClassification",
        "MagnetoForImageTextRetrieval", "MagnetoForMaskedDataModelling",
        "MagnetoForSemanticSegmentation", "MagnetoForTransducer",
        "MagnetoForVisualQuestionAnswering", "MagnetoForVisualReasoning",
        "MagnetoVisionLanguageModel",
    ),
    "processors": (
        "MASKED", "EncoderInput", "MagnetoImageProcessor", "MagnetoSentencePieceTokenizer",
        "MagnetoSpeechFeatureExtractor", "MagnetoVisionLanguageProcessor", "class_names",
    ),
    "wrapper": (
        "MagnetoConfig", "MagnetoEncoderConfig", "MagnetoImageCaptioningConfig",
        "MagnetoImageConfig", "MagnetoImageTextRetrievalConfig", "MagnetoMaskedDataConfig",
        "MagnetoQuestionAnsweringConfig", "MagnetoSegmentationConfig", "MagnetoSeq2SeqConfig",
        "MagnetoTransducerConfig", "MagnetoVisionLanguageConfig", "MagnetoVisualReasoningConfig",
        "register",
    ),
}  # fmt: skip
"""Public names of each module in this package."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in HOME.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'magneto.hf' has no attribute {name!r}")
    try:
        return getattr(import_module(f"magneto.hf.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("magneto"):
            raise
        message = f"magneto.hf needs {error.name}: pip install 'foundation-transformers[hf]'"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for names in HOME.values() for name in names)})
