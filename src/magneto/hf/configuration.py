"""Our language model's configuration, as transformers wants it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from transformers import PretrainedConfig

from magneto.models.language import LanguageModelConfig


class MagnetoConfig(PretrainedConfig):
    """Holds a `LanguageModelConfig` in `core`, as plain values under their own names.

    They have a place of their own because transformers gives some of the names (`max_length`)
    another meaning. The sizes that transformers reads are repeated under its names.
    """

    model_type = "magneto"

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        self.core = core or asdict(LanguageModelConfig(vocab_size=32768))
        # transformers changes its own copy when it resizes the vocabulary: that copy counts.
        self.vocab_size = values.pop("vocab_size", self.core["vocab_size"])
        config = self.language_model_config()
        values.setdefault("tie_word_embeddings", config.tie_embeddings)
        super().__init__(**values)
        self.hidden_size = config.width
        self.num_hidden_layers = config.layers
        self.num_attention_heads = config.heads
        self.num_key_value_heads = config.key_value_heads or config.heads
        self.head_dim = config.head_width

    @classmethod
    def of(cls, config: LanguageModelConfig, end: int | None = None) -> MagnetoConfig:
        """Return the configuration of a language model.

        Args:
            config: Of the model; its placement must be a row of the table.
            end: Number of the end-of-document token, which also begins and pads.
        """
        core = asdict(config) | {"placement": config.row.name}
        return cls(core, bos_token_id=end, eos_token_id=end, pad_token_id=end)

    def language_model_config(self) -> LanguageModelConfig:
        """Return our own configuration."""
        return LanguageModelConfig(**{**self.core, "vocab_size": self.vocab_size})
