"""The edge to the Hugging Face ecosystem. Nothing of it is imported before it is used.

An import changes nothing elsewhere: `magneto.hf.register()` is what makes AutoConfig and the Auto
classes of models know ours, and all that `AutoModelForCausalLM.from_pretrained(DIR)` and
`pipeline("text-generation", model=DIR)` need for an exported DIR. It may be called again.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what is known of the names before they are used
    from magneto.hf.configuration import *  # noqa: F403
    from magneto.hf.export import *  # noqa: F403
    from magneto.hf.generation import *  # noqa: F403
    from magneto.hf.language import *  # noqa: F403
    from magneto.hf.perception import *  # noqa: F403
    from magneto.hf.processors import *  # noqa: F403
    from magneto.hf.tokenizer import *  # noqa: F403
    from magneto.hf.weights.conversion import *  # noqa: F403

HOME = {
    "configuration": (
        "MagnetoConfig", "MagnetoEncoderConfig", "MagnetoImageCaptioningConfig",
        "MagnetoImageConfig", "MagnetoImageTextRetrievalConfig", "MagnetoMaskedDataConfig",
        "MagnetoQuestionAnsweringConfig", "MagnetoSegmentationConfig",
        "MagnetoSeq2SeqConfig", "MagnetoTransducerConfig", "MagnetoVisionLanguageConfig",
        "MagnetoVisualReasoningConfig", "register",
    ),
    "export": (
        "Assets", "export_model", "read_by_decoder", "read_by_encoder", "save_export", "wrap",
    ),
    "weights.conversion": ("from_torch", "load", "to_transformers"),
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
        "MagnetoImageProcessor", "MagnetoSpeechFeatureExtractor", "MagnetoVisionLanguageProcessor",
    ),
    "tokenizer": (
        "MASKED", "EncoderInput", "MagnetoSentencePieceTokenizer", "class_names",
    ),
}  # fmt: skip
"""Which module has which names of this package."""


def __getattr__(name: str) -> Any:
    """Import a name from its home the first time it is asked for."""
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
    """Return the names that there are, those too that nothing was imported for yet."""
    return sorted({*globals(), *(name for names in HOME.values() for name in names)})
