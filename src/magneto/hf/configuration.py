"""Our models' configurations, as transformers wants them: one class per family."""

from __future__ import annotations

import os
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from inspect import signature
from typing import Any, ClassVar

from transformers import PretrainedConfig

from magneto.hf.auto_map import WithoutCopies, auto_map, write_module
from magneto.language.classification.config import TextClassifierConfig
from magneto.language.config import (
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextEncoderConfig,
)
from magneto.nn.config import TransformerConfig
from magneto.speech.config import TransducerConfig
from magneto.translation.config import TranslationConfig
from magneto.vision.classification.config import ImageClassifierConfig
from magneto.vision.segmentation.config import SegmenterConfig

SHARED = {"vocab_size", "max_length", "head_dim"}
"""Names that transformers has too."""

OUR_NAMES = {
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "key_value_heads",
    "intermediate_size": "ffn_width",
    "max_position_embeddings": "max_length",
}
"""What transformers calls our sizes."""

ALSO_TRANSFORMERS = {
    "attn_implementation", "auto_map", "name_or_path", "num_labels", "output_attentions",
    "tie_word_embeddings", "torch_dtype", "use_cache",
}  # fmt: skip
"""What its configurations take beside the parameters that their class names."""


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
    """Return the name of a configuration's placement.

    Raises:
        ValueError: If it is no row of the table: a directory has only its name.
    """
    name = config.row.name
    if replace(config, placement=name).row != config.row:
        raise ValueError(f"a directory names its placement: {name!r} is another row in the table, "
                         "so this one cannot be kept")  # fmt: skip
    return name


class MagnetoConfig(WithoutCopies, PretrainedConfig):
    """Holds a core's configuration in `core`, as plain values under their own names.

    They have a place of their own because transformers gives some of the names (`max_length`)
    another meaning. The sizes that transformers reads are repeated under its names. This class is
    a language model's; the other families' differ in `shape` alone.
    """

    model_type = "magneto"
    shape = LanguageModelConfig
    classes: ClassVar = auto_map(
        AutoConfig="MagnetoConfig", AutoModelForCausalLM="MagnetoForCausalLM"
    )
    # A list, since Trainer adds one to it.
    keys_to_ignore_at_inference = ["past_key_values", "encoder_last_hidden_state"]  # noqa: RUF012

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        if core is None:
            core = self._new_core(values)
        elif beside := {field.name for field in fields(self.shape)} & set(values) - SHARED:
            raise ValueError(f"{', '.join(sorted(beside))} must be given in core, not beside it")
        self.core = core | {"placement": table_row(self.shape(**core))}
        for name, size in transformers_sizes(self.shape(**core)).items():
            values.setdefault(name, size)
        # transformers changes its own copy when it resizes the vocabulary: that copy counts.
        self.vocab_size = values.pop("vocab_size", self.core.get("vocab_size"))
        values.setdefault("tie_word_embeddings", self.core.get("tie_embeddings", False))
        super().__init__(**values)

    def _new_core(self, values: dict[str, Any]) -> dict[str, Any]:
        """Take the core's fields out of what was given; what is neither's is refused."""
        own = {field.name for field in fields(self.shape)}
        known = set(signature(PretrainedConfig.__init__).parameters) | ALSO_TRANSFORMERS
        for name in values:
            if name in own | known or name.startswith("_") or name.endswith("_token_id"):
                continue
            near = OUR_NAMES.get(name) or next(iter(get_close_matches(name, own, n=1)), None)
            hint = f"; did you mean {near}?" if near else ""
            raise ValueError(f"{type(self).__name__} has no {name}{hint}")
        given = {name: values.pop(name) for name in own & set(values)}
        config = self.shape(**(self.default_shape() | given))
        return asdict(config) | {"placement": table_row(config)}

    @classmethod
    def default_shape(cls) -> dict[str, Any]:
        """Return what the core's configuration must be given."""
        return {"vocab_size": 32768}

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        """Return the configuration of a model.

        Args:
            config: Of the model; its placement must be a row of the table.
            end: Number of the end-of-document token, which also begins and pads.
            **values: What else transformers' configuration has, `id2label` for example.

        Raises:
            ValueError: If the placement is no row of the table.
        """
        core = asdict(config) | {"placement": table_row(config)}
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
        return cls(core, **(ends | values))

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Write config.json, and the module that its `auto_map` names."""
        self.auto_map = dict(self.classes)
        write_module(save_directory)
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def core_config(self) -> Any:
        """Return our own configuration.

        Raises:
            ValueError: If a size was changed under transformers' name of it.
        """
        size = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        config = self.shape(**{**self.core, **size})
        for name, held in transformers_sizes(config).items():
            if getattr(self, name) != held:
                raise ValueError(f"{name} is {getattr(self, name)}, but the core says {held}: "
                                 "change core instead")  # fmt: skip
        return config


class MagnetoEncoderConfig(MagnetoConfig):
    """Holds a `MaskedLanguageModelConfig`: a text encoder's, with what a head for tokens needs."""

    model_type = "magneto-encoder"
    shape = MaskedLanguageModelConfig
    classes = auto_map(
        AutoConfig="MagnetoEncoderConfig",
        AutoModel="MagnetoEncoderModel",
        AutoModelForMaskedLM="MagnetoForMaskedLM",
        AutoModelForSequenceClassification="MagnetoForSequenceClassification",
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        self.classifier_dropout = values.pop("classifier_dropout", 0.1)
        super().__init__(core, **values)

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        """Return the configuration of a model with a `TextEncoder`; see `MagnetoConfig.of`."""
        assert isinstance(config, TextEncoderConfig)
        if isinstance(config, TextClassifierConfig):
            values.setdefault("classifier_dropout", config.head_dropout)
            if "id2label" not in values:
                values.setdefault("num_labels", config.classes)
        names = MaskedLanguageModelConfig.__dataclass_fields__
        given = {name: value for name, value in vars(config).items() if name in names}
        return super().of(MaskedLanguageModelConfig(**given), end, **values)

    def classifier_config(self) -> TextClassifierConfig:
        """Return the configuration of a `TextClassifier`."""
        names = TextClassifierConfig.__dataclass_fields__
        given = {k: v for k, v in vars(self.core_config()).items() if k in names}
        head = {"classes": self.num_labels, "head_dropout": self.classifier_dropout}
        return TextClassifierConfig(**given, **head)


class MagnetoSeq2SeqConfig(MagnetoConfig):
    """Holds a `TranslationConfig`."""

    model_type = "magneto-seq2seq"
    shape = TranslationConfig
    classes = auto_map(
        AutoConfig="MagnetoSeq2SeqConfig", AutoModelForSeq2SeqLM="MagnetoForSeq2SeqLM"
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        values.setdefault("is_encoder_decoder", True)
        values.setdefault("tie_word_embeddings", True)
        values.setdefault("decoder_start_token_id", values.get("bos_token_id"))
        super().__init__(core, **values)

    @classmethod
    def default_shape(cls) -> dict[str, Any]:
        """Return what the core's configuration must be given."""
        return {"vocab_size": 32768, "encoder_layers": 6, "decoder_layers": 6}


class MagnetoTransducerConfig(MagnetoConfig):
    """Holds a `TransducerConfig`."""

    model_type = "magneto-transducer"
    shape = TransducerConfig
    classes = auto_map(AutoConfig="MagnetoTransducerConfig", AutoModel="MagnetoForTransducer")

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        # transformers makes a dataclass of what has no `__init__` of its own.
        super().__init__(core, **values)

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        """Return the configuration of a model; see `MagnetoConfig.of`.

        The run that it began with is not told: its weights are the model's own.
        """
        assert isinstance(config, TransducerConfig)
        return super().of(replace(config, pretrained=None), end, **values)


class MagnetoImageConfig(MagnetoConfig):
    """Holds an `ImageClassifierConfig`."""

    model_type = "magneto-image"
    shape = ImageClassifierConfig
    classes = auto_map(
        AutoConfig="MagnetoImageConfig",
        AutoModelForImageClassification="MagnetoForImageClassification",
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        if "id2label" not in values:
            classes = (core or values).get("classes", self.shape.classes)
            values.setdefault("num_labels", classes)
        super().__init__(core, **values)

    def core_config(self) -> ImageClassifierConfig:
        """Return our own configuration; `num_labels` says how many classes."""
        return replace(super().core_config(), classes=self.num_labels)

    @classmethod
    def default_shape(cls) -> dict[str, Any]:
        """Return what the core's configuration must be given: nothing."""
        return {}


class MagnetoSegmentationConfig(MagnetoImageConfig):
    """Holds a `SegmenterConfig`."""

    model_type = "magneto-segmentation"
    shape = SegmenterConfig
    classes = auto_map(
        AutoConfig="MagnetoSegmentationConfig",
        AutoModelForSemanticSegmentation="MagnetoForSemanticSegmentation",
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(core, **values)  # transformers gives a class without one another

    def core_config(self) -> Any:
        """Return our own configuration; `num_labels` says how many classes."""
        return super().core_config()

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        """Return the configuration of a model; see `MagnetoConfig.of`.

        The run that it began with is not told: its weights are the model's own.
        """
        assert isinstance(config, SegmenterConfig)
        return super().of(replace(config, pretrained=None), end, **values)
