"""Configurations for transformers, one class per `model_type`, and their registration.

An Auto class also loads an exported directory without `register()`, by `from_pretrained(DIR,
trust_remote_code=True)`. The directory's `auto_map` names a short module in the directory, which
imports the classes from the installed package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

from transformers import PretrainedConfig

from magneto.config import nearest
from magneto.language.config import (
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
)
from magneto.nn.config import TransformerConfig
from magneto.speech.config import TransducerConfig
from magneto.translation.config import TranslationConfig
from magneto.vision.config import ImageClassifierConfig, SegmenterConfig
from magneto.vision_language.config import (
    ImageCaptionerConfig,
    ImageTextRetrieverConfig,
    MaskedDataModelConfig,
    QuestionAnsweringConfig,
    VisionLanguageConfig,
    VisualReasonerConfig,
)

MODULE = "magneto_classes"
MODULE_SOURCE = '''"""Classes of this directory, imported from the package magneto."""

try:
    from magneto import hf
except ModuleNotFoundError as error:
    if error.name != "magneto":
        raise
    message = "this model needs magneto: pip install 'foundation-transformers[hf]'"
    raise ModuleNotFoundError(message, name=error.name) from error


def __getattr__(name):
    return getattr(hf, name)
'''


def auto_map(classes: Mapping[str, str]) -> dict[str, str]:
    return {auto: f"{MODULE}.{name}" for auto, name in classes.items()}


def write_module(directory: str | os.PathLike[str]) -> None:
    """Write the module that an `auto_map` names."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    Path(directory, f"{MODULE}.py").write_text(MODULE_SOURCE, encoding="utf-8")


class WithoutCopies:
    """Mix-in for classes whose source code must not be copied into a directory by transformers."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "") -> None:
        """Do nothing, although transformers calls this method for every class in an `auto_map`."""


class SavedWithModule(WithoutCopies):
    """Mix-in for classes that are saved with an `auto_map` and its module."""

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> Any:
        write_module(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)  # type: ignore[misc]


SHARED = {"vocab_size", "max_length", "head_dim"}
"""Field names that occur both in Magneto's and in transformers' configurations."""

ALSO_TRANSFORMERS = {
    "attn_implementation", "auto_map", "name_or_path", "num_labels", "output_attentions",
    "tie_word_embeddings", "torch_dtype", "use_cache",
}  # fmt: skip
"""Keyword arguments of transformers' configurations that are not in their signature."""

TOKENIZER = {"AutoTokenizer": "MagnetoSentencePieceTokenizer"}
IMAGE_PROCESSOR = {"AutoImageProcessor": "MagnetoImageProcessor"}
PROCESSOR = {**TOKENIZER, **IMAGE_PROCESSOR, "AutoProcessor": "MagnetoVisionLanguageProcessor"}
"""Magneto's processor classes of vision-language models, by Auto class."""


def transformers_sizes(config: TransformerConfig) -> dict[str, int]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.decoder_layers or config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads or config.heads,
        "head_dim": config.head_width,
    }


def placement_name(config: TransformerConfig) -> str:
    """Return the placement's name; raise ValueError if the placement is not in the table."""
    name = config.row.name
    if replace(config, placement=name).row != config.row:
        raise ValueError(f"placement {name!r} differs from the row of that name in the placement "
                         "table, so it cannot be saved by its name")  # fmt: skip
    return name


class MagnetoConfig(SavedWithModule, PretrainedConfig):
    """Transformers configuration of language models, and base class of the other configurations.

    `core` contains the fields of Magneto's configuration, because some of their names
    (`max_length`) have another meaning in transformers. The model's sizes are repeated under
    transformers' names.

    Attributes:
        model_type: Name of the class in config.json.
        shape: Magneto's configuration class.
        classes: Magneto's classes by the Auto class that loads them.
        num_labels_field: Field of `shape` that corresponds to transformers' `num_labels`.
        defaults: Values of required fields of `shape`.
        values: Default values of transformers' own fields.
    """

    model_type = "magneto"
    shape: ClassVar[Any] = LanguageModelConfig
    classes: ClassVar[Mapping[str, str]] = {
        "AutoModelForCausalLM": "MagnetoForCausalLM",
        **TOKENIZER,
    }
    num_labels_field: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Any]] = {"vocab_size": 32768}
    values: ClassVar[Mapping[str, Any]] = {}
    # A list, because Trainer adds it to a list.
    keys_to_ignore_at_inference = ["past_key_values", "encoder_last_hidden_state"]  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        """Do nothing, because transformers' method would convert a subclass to a dataclass."""

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        if self.num_labels_field and "id2label" not in values:
            known = {
                self.num_labels_field: getattr(self.shape, self.num_labels_field, None),
                **self.defaults,
            }
            values.setdefault(
                "num_labels",
                (core or values).get(self.num_labels_field, known[self.num_labels_field]),
            )
        if core is None:
            core = self._new_core(values)
        elif beside := {field.name for field in fields(self.shape)} & set(values) - SHARED:
            raise ValueError(f"{', '.join(sorted(beside))} must be given in core, not separately")
        # Reading a directory must run no code of its author's: an import path would.
        if ":" in str(core.get("placement", "")):
            raise ValueError(f"placement {core['placement']!r} is not in the table of placements, "
                             "so it cannot be saved or loaded")  # fmt: skip
        self.core = core | {"placement": placement_name(self.shape(**core))}
        values = {**transformers_sizes(self.shape(**core)), **self.values, **values}
        # transformers changes this copy when it resizes the vocabulary.
        self.vocab_size = values.pop("vocab_size", self.core.get("vocab_size"))
        values.setdefault("tie_word_embeddings", self.core.get("tie_embeddings", False))
        if values.get("is_encoder_decoder"):
            values.setdefault("decoder_start_token_id", values.get("bos_token_id"))
        super().__init__(**values)
        models = {auto: name for auto, name in self.classes.items() if "AutoModel" in auto}
        self.auto_map = auto_map({"AutoConfig": type(self).__name__, **models})

    def _new_core(self, values: dict[str, Any]) -> dict[str, Any]:
        """Move the core's fields out of `values`; raise ValueError for an unknown field."""
        own = {field.name for field in fields(self.shape)}
        known = set(signature(PretrainedConfig.__init__).parameters) | ALSO_TRANSFORMERS
        for name in values:
            if name in own | known or name.startswith("_") or name.endswith("_token_id"):
                continue
            raise ValueError(f"{type(self).__name__} has no {name}{nearest(name, sorted(own))}")
        given = {name: values.pop(name) for name in own & set(values)}
        config = self.shape(**{**self.defaults, **given})
        return asdict(config) | {"placement": placement_name(config)}

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        """Return the transformers configuration of a model, without the field `pretrained`.

        Args:
            config: Magneto's configuration; its placement must be in the placement table.
            end: End token, also used as begin and padding token.
            **values: Further fields of transformers' configuration, such as `id2label`.

        Raises:
            ValueError: If the placement is not in the placement table.
        """
        held = {field.name for field in fields(config)} - {"pretrained"}
        names = [field.name for field in fields(cls.shape) if field.name in held]
        shape = cls.shape(**{name: getattr(config, name) for name in names})
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
        return cls(asdict(shape) | {"placement": placement_name(config)}, **(ends | values))

    def core_config(self) -> Any:
        """Return Magneto's configuration, with this object's `vocab_size` and `num_labels`.

        Raises:
            ValueError: If a size was changed under its transformers name but not in `core`.
        """
        size = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        count = {self.num_labels_field: self.num_labels} if self.num_labels_field else {}
        config = self.shape(**{**self.core, **size, **count})
        for name, held in transformers_sizes(config).items():
            if getattr(self, name) != held:
                raise ValueError(f"{name} is {getattr(self, name)}, but core has {held}. "
                                 "Change core instead.")  # fmt: skip
        return config


class MagnetoEncoderConfig(MagnetoConfig):
    """Transformers configuration of text encoders with or without a head."""

    model_type = "magneto-encoder"
    shape = MaskedLanguageModelConfig
    classes: ClassVar = {
        "AutoModel": "MagnetoEncoderModel",
        "AutoModelForMaskedLM": "MagnetoForMaskedLM",
        "AutoModelForSequenceClassification": "MagnetoForSequenceClassification",
        **TOKENIZER,
    }

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        self.classifier_dropout = values.pop("classifier_dropout", 0.1)
        self.classifier_pooling = values.pop("classifier_pooling", "first")
        super().__init__(core, **values)

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        if isinstance(config, TextClassifierConfig):
            values.setdefault("classifier_dropout", config.head_dropout)
            values.setdefault("classifier_pooling", config.pooling)
            if "id2label" not in values:
                values.setdefault("num_labels", config.classes)
        return super().of(config, end, **values)

    def classifier_config(self) -> TextClassifierConfig:
        names = TextClassifierConfig.__dataclass_fields__
        given = {k: v for k, v in vars(self.core_config()).items() if k in names}
        head = {"classes": self.num_labels, "head_dropout": self.classifier_dropout,
                "pooling": self.classifier_pooling}  # fmt: skip
        return TextClassifierConfig(**given, **head)


def configuration(
    name: str, model_type: str, shape: type[TransformerConfig], classes: Mapping[str, str],
    **others: Any,
) -> type[MagnetoConfig]:  # fmt: skip
    """Make the configuration class of a `model_type`; `name` must be its name in this module."""
    body = {"__doc__": f"Configuration with a `{shape.__name__}`.", "__module__": __name__,
            "model_type": model_type, "shape": shape, "classes": classes, **others}  # fmt: skip
    return type(name, (MagnetoConfig,), body)


MagnetoSeq2SeqConfig = configuration(
    "MagnetoSeq2SeqConfig", "magneto-seq2seq", TranslationConfig,
    {"AutoModelForSeq2SeqLM": "MagnetoForSeq2SeqLM", **TOKENIZER},
    defaults={"vocab_size": 32768, "encoder_layers": 6, "decoder_layers": 6},
    values={"is_encoder_decoder": True, "tie_word_embeddings": True},
)  # fmt: skip
MagnetoTransducerConfig = configuration(
    "MagnetoTransducerConfig", "magneto-transducer", TransducerConfig,
    {
        "AutoModel": "MagnetoForTransducer",
        "AutoFeatureExtractor": "MagnetoSpeechFeatureExtractor", **TOKENIZER,
    },
)  # fmt: skip
MagnetoImageConfig = configuration(
    "MagnetoImageConfig", "magneto-image", ImageClassifierConfig,
    {"AutoModelForImageClassification": "MagnetoForImageClassification", **IMAGE_PROCESSOR},
    num_labels_field="classes", defaults={},
)  # fmt: skip
MagnetoSegmentationConfig = configuration(
    "MagnetoSegmentationConfig", "magneto-segmentation", SegmenterConfig,
    {"AutoModelForSemanticSegmentation": "MagnetoForSemanticSegmentation", **IMAGE_PROCESSOR},
    num_labels_field="classes", defaults={},
)  # fmt: skip
MagnetoVisionLanguageConfig = configuration(
    "MagnetoVisionLanguageConfig", "magneto-vision-language", VisionLanguageConfig,
    {"AutoModel": "MagnetoVisionLanguageModel", **PROCESSOR},
)  # fmt: skip
MagnetoMaskedDataConfig = configuration(
    "MagnetoMaskedDataConfig", "magneto-masked-data", MaskedDataModelConfig,
    {"AutoModelForPreTraining": "MagnetoForMaskedDataModelling", **PROCESSOR},
    defaults={"vocab_size": 64010, "codes": 8192},
)  # fmt: skip
MagnetoQuestionAnsweringConfig = configuration(
    "MagnetoQuestionAnsweringConfig", "magneto-question-answering", QuestionAnsweringConfig,
    {"AutoModelForVisualQuestionAnswering": "MagnetoForVisualQuestionAnswering", **PROCESSOR},
    num_labels_field="answers", defaults={"vocab_size": 64010, "answers": 3129},
)  # fmt: skip
MagnetoVisualReasoningConfig = configuration(
    "MagnetoVisualReasoningConfig", "magneto-visual-reasoning", VisualReasonerConfig,
    {"AutoModel": "MagnetoForVisualReasoning", **PROCESSOR},
)  # fmt: skip
MagnetoImageTextRetrievalConfig = configuration(
    "MagnetoImageTextRetrievalConfig", "magneto-image-text-retrieval", ImageTextRetrieverConfig,
    {
        "AutoModel": "MagnetoForImageTextRetrieval",
        "AutoModelForZeroShotImageClassification": "MagnetoForImageTextRetrieval", **PROCESSOR,
    },
)  # fmt: skip
MagnetoImageCaptioningConfig = configuration(
    "MagnetoImageCaptioningConfig", "magneto-image-captioning", ImageCaptionerConfig,
    {"AutoModelForImageTextToText": "MagnetoForImageCaptioning", **PROCESSOR},
)  # fmt: skip

CONFIGURATIONS: tuple[type[MagnetoConfig], ...] = (
    MagnetoConfig, MagnetoEncoderConfig, MagnetoSeq2SeqConfig, MagnetoTransducerConfig,
    MagnetoImageConfig, MagnetoSegmentationConfig, MagnetoVisionLanguageConfig,
    MagnetoMaskedDataConfig, MagnetoQuestionAnsweringConfig, MagnetoVisualReasoningConfig,
    MagnetoImageTextRetrievalConfig, MagnetoImageCaptioningConfig,
)  # fmt: skip
"""All configuration classes, for registration and export."""


def register() -> None:
    """Register Magneto's classes with transformers' Auto classes; repeated calls are allowed."""
    import transformers

    from magneto import hf

    for config in CONFIGURATIONS:
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
        for auto, name in config.classes.items():
            loads: Any = getattr(transformers, auto)
            if auto == "AutoImageProcessor":
                loads.register(config, slow_image_processor_class=getattr(hf, name), exist_ok=True)
            else:  # a directory's own tokenizer_config.json goes before
                loads.register(config, getattr(hf, name), exist_ok=True)
