"""Our models' configurations, as transformers wants them: one class per family."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
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
from magneto.translation.config import TranslationConfig
from magneto.vision.config import ImageClassifierConfig


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
        self.core = core or asdict(self.shape(**self.default_shape()))
        config = self.shape(**self.core)
        # transformers changes its own copy when it resizes the vocabulary: that copy counts.
        self.vocab_size = values.pop("vocab_size", self.core.get("vocab_size"))
        values.setdefault("tie_word_embeddings", self.core.get("tie_embeddings", False))
        super().__init__(**values)
        self.hidden_size = config.width
        self.num_hidden_layers = config.decoder_layers or config.layers
        self.num_attention_heads = config.heads
        self.num_key_value_heads = config.key_value_heads or config.heads
        self.head_dim = config.head_width

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
        """
        core = asdict(config) | {"placement": config.row.name}
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
        return cls(core, **(ends | values))

    def save_pretrained(
        self, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Write config.json, and the module that its `auto_map` names."""
        self.auto_map = dict(self.classes)
        write_module(save_directory)
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def core_config(self) -> Any:
        """Return our own configuration."""
        size = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        return self.shape(**{**self.core, **size})


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


class MagnetoImageConfig(MagnetoConfig):
    """Holds an `ImageClassifierConfig`."""

    model_type = "magneto-image"
    shape = ImageClassifierConfig
    classes = auto_map(
        AutoConfig="MagnetoImageConfig",
        AutoModelForImageClassification="MagnetoForImageClassification",
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        if core and "id2label" not in values:
            values.setdefault("num_labels", core["classes"])
        super().__init__(core, **values)

    @classmethod
    def default_shape(cls) -> dict[str, Any]:
        """Return what the core's configuration must be given: nothing."""
        return {}
