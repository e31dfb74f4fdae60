"""Configurations of our models of vision and language, as transformers wants them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magneto.hf.auto_map import auto_map
from magneto.hf.configuration import MagnetoConfig
from magneto.nn.config import TransformerConfig
from magneto.vision_language.captioning.config import ImageCaptionerConfig
from magneto.vision_language.config import FineTunedConfig, VisionLanguageConfig
from magneto.vision_language.modelling.config import MaskedDataModelConfig
from magneto.vision_language.question_answering.config import QuestionAnsweringConfig
from magneto.vision_language.reasoning.config import VisualReasonerConfig
from magneto.vision_language.retrieval.config import ImageTextRetrieverConfig

# transformers makes a dataclass of a configuration that has no `__init__` of its own, so each has.


class MagnetoVisionLanguageConfig(MagnetoConfig):
    """Holds a `VisionLanguageConfig`: of an encoder without a head."""

    model_type = "magneto-vision-language"
    shape = VisionLanguageConfig
    classes = auto_map(
        AutoConfig="MagnetoVisionLanguageConfig", AutoModel="MagnetoVisionLanguageModel"
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(core, **values)


class MagnetoMaskedDataConfig(MagnetoVisionLanguageConfig):
    """Holds a `MaskedDataModelConfig`."""

    model_type = "magneto-masked-data"
    shape = MaskedDataModelConfig
    classes = auto_map(
        AutoConfig="MagnetoMaskedDataConfig",
        AutoModelForPreTraining="MagnetoForMaskedDataModelling",
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(core, **values)

    @classmethod
    def default_shape(cls) -> dict[str, Any]:
        """Return what the core's configuration must be given."""
        return {"vocab_size": 64010, "codes": 8192}


class MagnetoFineTunedConfig(MagnetoVisionLanguageConfig):
    """Holds a `FineTunedConfig`; the run that it began with is not told."""

    model_type = "magneto-fine-tuned"
    shape = FineTunedConfig

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(core, **values)

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        """Return the configuration of a model; see `MagnetoConfig.of`."""
        assert isinstance(config, FineTunedConfig)
        return super().of(replace(config, pretrained=None), end, **values)


class MagnetoQuestionAnsweringConfig(MagnetoFineTunedConfig):
    """Holds a `QuestionAnsweringConfig`; `id2label` has the answers."""

    model_type = "magneto-question-answering"
    shape = QuestionAnsweringConfig
    classes = auto_map(
        AutoConfig="MagnetoQuestionAnsweringConfig",
        AutoModelForVisualQuestionAnswering="MagnetoForVisualQuestionAnswering",
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        if "id2label" not in values:
            values.setdefault("num_labels", (core or values).get("answers", 3129))
        super().__init__(core, **values)

    def core_config(self) -> QuestionAnsweringConfig:
        """Return our own configuration; `num_labels` says how many answers."""
        return replace(super().core_config(), answers=self.num_labels)

    @classmethod
    def default_shape(cls) -> dict[str, Any]:
        """Return what the core's configuration must be given."""
        return {"vocab_size": 64010, "answers": 3129}


class MagnetoVisualReasoningConfig(MagnetoFineTunedConfig):
    """Holds a `VisualReasonerConfig`."""

    model_type = "magneto-visual-reasoning"
    shape = VisualReasonerConfig
    classes = auto_map(
        AutoConfig="MagnetoVisualReasoningConfig", AutoModel="MagnetoForVisualReasoning"
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(core, **values)


class MagnetoImageTextRetrievalConfig(MagnetoFineTunedConfig):
    """Holds an `ImageTextRetrieverConfig`."""

    model_type = "magneto-image-text-retrieval"
    shape = ImageTextRetrieverConfig
    classes = auto_map(
        AutoConfig="MagnetoImageTextRetrievalConfig",
        AutoModel="MagnetoForImageTextRetrieval",
        AutoModelForZeroShotImageClassification="MagnetoForImageTextRetrieval",
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(core, **values)


class MagnetoImageCaptioningConfig(MagnetoFineTunedConfig):
    """Holds an `ImageCaptionerConfig`."""

    model_type = "magneto-image-captioning"
    shape = ImageCaptionerConfig
    classes = auto_map(
        AutoConfig="MagnetoImageCaptioningConfig",
        AutoModelForImageTextToText="MagnetoForImageCaptioning",
    )

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(core, **values)
