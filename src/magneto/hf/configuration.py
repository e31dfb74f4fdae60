"""Our models' configurations as transformers has them: one class a `model_type`, in one table.

An exported directory needs no `register()`: `from_pretrained(DIR, trust_remote_code=True)` of an
Auto class looks into the directory's `auto_map`, and finds our classes in a module of a few lines
beside the weights, which takes them from the installed package.
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
MODULE_SOURCE = '''"""The classes of this directory; the package magneto has them."""

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
    """Return an `auto_map`: the Auto classes, and which of our classes each loads."""
    return {auto: f"{MODULE}.{name}" for auto, name in classes.items()}


def write_module(directory: str | os.PathLike[str]) -> None:
    """Write the module that an `auto_map` names."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    Path(directory, f"{MODULE}.py").write_text(MODULE_SOURCE, encoding="utf-8")


class WithoutCopies:
    """A class whose source transformers need not copy into a directory: the package has it."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "") -> None:
        """Do nothing; transformers calls it of every class that an `auto_map` named."""


class SavedWithModule(WithoutCopies):
    """One whose file in a directory has an `auto_map`, so that the module belongs beside it."""

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> Any:
        """Write the object's own files, and the module that their `auto_map` names."""
        write_module(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)  # type: ignore[misc]


SHARED = {"vocab_size", "max_length", "head_dim"}
"""Names that transformers has too."""

ALSO_TRANSFORMERS = {
    "attn_implementation", "auto_map", "name_or_path", "num_labels", "output_attentions",
    "tie_word_embeddings", "torch_dtype", "use_cache",
}  # fmt: skip
"""What its configurations take beside the parameters that their class names."""

TOKENIZER = {"AutoTokenizer": "MagnetoSentencePieceTokenizer"}
PICTURES = {"AutoImageProcessor": "MagnetoImageProcessor"}
PAIRS = {**TOKENIZER, **PICTURES, "AutoProcessor": "MagnetoVisionLanguageProcessor"}
"""What reads texts, images, and both, by the Auto class that loads it."""


def transformers_sizes(config: TransformerConfig) -> dict[str, int]:
    """Return the sizes that transformers reads, under its names."""
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.decoder_layers or config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads or config.heads,
        "head_dim": config.head_width,
    }


def table_row(config: TransformerConfig) -> str:
    """Return the name of a configuration's placement."""
    name = config.row.name
    if replace(config, placement=name).row != config.row:
        raise ValueError(f"a directory names its placement: {name!r} is another row in the table, "
                         "so this one cannot be kept")  # fmt: skip
    return name


class MagnetoConfig(SavedWithModule, PretrainedConfig):
    """Holds a core's configuration in `core`, as plain values under their own names.

    They have a place of their own because transformers gives some of the names (`max_length`)
    another meaning. The sizes that transformers reads are repeated under its names. This class is
    a language model's; those of the other models differ in these attributes:

    Attributes:
        model_type: By which a directory's config.json names the class.
        shape: Our configuration.
        classes: The Auto classes, and our class that each loads for this configuration.
        counted: Field of `shape` that transformers calls `num_labels`.
        defaults: Fields of `shape` that must be given, and are not always.
        values: What transformers' configuration has, where nothing else is given.
    """

    model_type = "magneto"
    shape: ClassVar[Any] = LanguageModelConfig
    classes: ClassVar[Mapping[str, str]] = {
        "AutoModelForCausalLM": "MagnetoForCausalLM",
        **TOKENIZER,
    }
    counted: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Any]] = {"vocab_size": 32768}
    values: ClassVar[Mapping[str, Any]] = {}
    # A list, since Trainer adds one to it.
    keys_to_ignore_at_inference = ["past_key_values", "encoder_last_hidden_state"]  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        """Leave a subclass as it is: transformers would make a dataclass of it."""

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        if self.counted and "id2label" not in values:
            known = {self.counted: getattr(self.shape, self.counted, None), **self.defaults}
            values.setdefault("num_labels", (core or values).get(self.counted, known[self.counted]))
        if core is None:
            core = self._new_core(values)
        elif beside := {field.name for field in fields(self.shape)} & set(values) - SHARED:
            raise ValueError(f"{', '.join(sorted(beside))} must be given in core, not beside it")
        # Reading a directory must run no code of its author's: an import path would.
        if ":" in str(core.get("placement", "")):
            raise ValueError(f"placement {core['placement']!r} is not in the table of placements, "
                             "so a directory cannot hold it")  # fmt: skip
        self.core = core | {"placement": table_row(self.shape(**core))}
        values = {**transformers_sizes(self.shape(**core)), **self.values, **values}
        # transformers changes its own copy when it resizes the vocabulary: that copy counts.
        self.vocab_size = values.pop("vocab_size", self.core.get("vocab_size"))
        values.setdefault("tie_word_embeddings", self.core.get("tie_embeddings", False))
        if values.get("is_encoder_decoder"):
            values.setdefault("decoder_start_token_id", values.get("bos_token_id"))
        super().__init__(**values)
        models = {auto: name for auto, name in self.classes.items() if "AutoModel" in auto}
        self.auto_map = auto_map({"AutoConfig": type(self).__name__, **models})

    def _new_core(self, values: dict[str, Any]) -> dict[str, Any]:
        """Take the core's fields out of what was given; what is neither's is refused."""
        own = {field.name for field in fields(self.shape)}
        known = set(signature(PretrainedConfig.__init__).parameters) | ALSO_TRANSFORMERS
        for name in values:
            if name in own | known or name.startswith("_") or name.endswith("_token_id"):
                continue
            raise ValueError(f"{type(self).__name__} has no {name}{nearest(name, sorted(own))}")
        given = {name: values.pop(name) for name in own & set(values)}
        config = self.shape(**{**self.defaults, **given})
        return asdict(config) | {"placement": table_row(config)}

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        """Return the configuration of a model.

        The run that it began with is not told: its weights are the model's own.

        Args:
            config: Of the model; its placement must be a row of the table.
            end: Number of the end-of-document token, which also begins and pads.
            **values: What else transformers' configuration has, `id2label` for example.

        Raises:
            ValueError: If the placement is no row of the table.
        """
        held = {field.name for field in fields(config)} - {"pretrained"}
        names = [field.name for field in fields(cls.shape) if field.name in held]
        shape = cls.shape(**{name: getattr(config, name) for name in names})
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
        return cls(asdict(shape) | {"placement": table_row(config)}, **(ends | values))

    def core_config(self) -> Any:
        """Return our own configuration; `num_labels` says how many classes a model has.

        Raises:
            ValueError: If a size was changed under transformers' name of it.
        """
        size = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        count = {self.counted: self.num_labels} if self.counted else {}
        config = self.shape(**{**self.core, **size, **count})
        for name, held in transformers_sizes(config).items():
            if getattr(self, name) != held:
                raise ValueError(f"{name} is {getattr(self, name)}, but the core says {held}: "
                                 "change core instead")  # fmt: skip
        return config


class MagnetoEncoderConfig(MagnetoConfig):
    """Holds a `MaskedLanguageModelConfig`: a text encoder's, with what a head for tokens needs."""

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
        """Return the configuration of a model with a `TextEncoder`; see `MagnetoConfig.of`."""
        if isinstance(config, TextClassifierConfig):
            values.setdefault("classifier_dropout", config.head_dropout)
            values.setdefault("classifier_pooling", config.pooling)
            if "id2label" not in values:
                values.setdefault("num_labels", config.classes)
        return super().of(config, end, **values)

    def classifier_config(self) -> TextClassifierConfig:
        """Return the configuration of a `TextClassifier`."""
        names = TextClassifierConfig.__dataclass_fields__
        given = {k: v for k, v in vars(self.core_config()).items() if k in names}
        head = {"classes": self.num_labels, "head_dropout": self.classifier_dropout,
                "pooling": self.classifier_pooling}  # fmt: skip
        return TextClassifierConfig(**given, **head)


def configuration(
    name: str, model_type: str, shape: type[TransformerConfig], classes: Mapping[str, str],
    **others: Any,
) -> type[MagnetoConfig]:  # fmt: skip
    """Make the class of one `model_type`.

    Args:
        name: Under which this module holds it: so it is found when it is unpickled.
        model_type: By which a directory's config.json names the class.
        shape: Our configuration.
        classes: The Auto classes, and our class that each loads.
        **others: Other attributes of `MagnetoConfig`.
    """
    body = {"__doc__": f"Holds a `{shape.__name__}`.", "__module__": __name__,
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
    {"AutoModelForImageClassification": "MagnetoForImageClassification", **PICTURES},
    counted="classes", defaults={},
)  # fmt: skip
MagnetoSegmentationConfig = configuration(
    "MagnetoSegmentationConfig", "magneto-segmentation", SegmenterConfig,
    {"AutoModelForSemanticSegmentation": "MagnetoForSemanticSegmentation", **PICTURES},
    counted="classes", defaults={},
)  # fmt: skip
MagnetoVisionLanguageConfig = configuration(
    "MagnetoVisionLanguageConfig", "magneto-vision-language", VisionLanguageConfig,
    {"AutoModel": "MagnetoVisionLanguageModel", **PAIRS},
)  # fmt: skip
MagnetoMaskedDataConfig = configuration(
    "MagnetoMaskedDataConfig", "magneto-masked-data", MaskedDataModelConfig,
    {"AutoModelForPreTraining": "MagnetoForMaskedDataModelling", **PAIRS},
    defaults={"vocab_size": 64010, "codes": 8192},
)  # fmt: skip
MagnetoQuestionAnsweringConfig = configuration(
    "MagnetoQuestionAnsweringConfig", "magneto-question-answering", QuestionAnsweringConfig,
    {"AutoModelForVisualQuestionAnswering": "MagnetoForVisualQuestionAnswering", **PAIRS},
    counted="answers", defaults={"vocab_size": 64010, "answers": 3129},
)  # fmt: skip
MagnetoVisualReasoningConfig = configuration(
    "MagnetoVisualReasoningConfig", "magneto-visual-reasoning", VisualReasonerConfig,
    {"AutoModel": "MagnetoForVisualReasoning", **PAIRS},
)  # fmt: skip
MagnetoImageTextRetrievalConfig = configuration(
    "MagnetoImageTextRetrievalConfig", "magneto-image-text-retrieval", ImageTextRetrieverConfig,
    {
        "AutoModel": "MagnetoForImageTextRetrieval",
        "AutoModelForZeroShotImageClassification": "MagnetoForImageTextRetrieval", **PAIRS,
    },
)  # fmt: skip
MagnetoImageCaptioningConfig = configuration(
    "MagnetoImageCaptioningConfig", "magneto-image-captioning", ImageCaptionerConfig,
    {"AutoModelForImageTextToText": "MagnetoForImageCaptioning", **PAIRS},
)  # fmt: skip

CONFIGURATIONS: tuple[type[MagnetoConfig], ...] = (
    MagnetoConfig, MagnetoEncoderConfig, MagnetoSeq2SeqConfig, MagnetoTransducerConfig,
    MagnetoImageConfig, MagnetoSegmentationConfig, MagnetoVisionLanguageConfig,
    MagnetoMaskedDataConfig, MagnetoQuestionAnsweringConfig, MagnetoVisualReasoningConfig,
    MagnetoImageTextRetrievalConfig, MagnetoImageCaptioningConfig,
)  # fmt: skip
"""The table: what is registered, wrapped and exported is looked up here."""


def register() -> None:
    """Make transformers' Auto classes know ours; may be called again."""
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
