"""Write our models as directories that transformers reads."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from magneto.files import directory_aside
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
from magneto.hf.images import MagnetoForImageClassification
from magneto.hf.modeling import MagnetoForCausalLM
from magneto.hf.segmentation import MagnetoForSemanticSegmentation
from magneto.hf.seq2seq import MagnetoForSeq2SeqLM
from magneto.hf.transducer import MagnetoForTransducer
from magneto.hf.vision_language_wrappers import VISION_LANGUAGE_AUTO, VISION_LANGUAGE_WRAPPERS
from magneto.language.classification.model import TextClassifier
from magneto.language.masked_language import MaskedLanguageModel
from magneto.language.model import LanguageModel
from magneto.language.text_encoder import TextEncoder
from magneto.speech.model import Transducer
from magneto.translation.model import TranslationModel
from magneto.vision.classification.model import ImageClassifier
from magneto.vision.segmentation.model import Segmenter

WRAPPERS: dict[type[nn.Module], tuple[type[MagnetoConfig], type[PreTrainedModel]]] = {
    LanguageModel: (MagnetoConfig, MagnetoForCausalLM),
    TextEncoder: (MagnetoEncoderConfig, MagnetoEncoderModel),
    MaskedLanguageModel: (MagnetoEncoderConfig, MagnetoForMaskedLM),
    TextClassifier: (MagnetoEncoderConfig, MagnetoForSequenceClassification),
    TranslationModel: (MagnetoSeq2SeqConfig, MagnetoForSeq2SeqLM),
    ImageClassifier: (MagnetoImageConfig, MagnetoForImageClassification),
    Segmenter: (MagnetoSegmentationConfig, MagnetoForSemanticSegmentation),
    Transducer: (MagnetoTransducerConfig, MagnetoForTransducer),
    **VISION_LANGUAGE_WRAPPERS,
}
# Tokens; only told to transformers' tokenizer.
LONGEST_TRANSCRIPT = 10_000
AUTO = {
    "MagnetoForCausalLM": "AutoModelForCausalLM",
    "MagnetoEncoderModel": "AutoModel",
    "MagnetoForMaskedLM": "AutoModelForMaskedLM",
    "MagnetoForSequenceClassification": "AutoModelForSequenceClassification",
    "MagnetoForSeq2SeqLM": "AutoModelForSeq2SeqLM",
    "MagnetoForImageClassification": "AutoModelForImageClassification",
    "MagnetoForSemanticSegmentation": "AutoModelForSemanticSegmentation",
    "MagnetoForTransducer": "AutoModel",
    **VISION_LANGUAGE_AUTO,
}
"""By which Auto class each of our wrappers is loaded."""


def wrap(model: nn.Module, end: int | None = None, **values: Any) -> PreTrainedModel:
    """Return a model of ours as transformers', in evaluation mode; the weights are shared.

    Args:
        model: Of ours.
        end: Number of the token that ends a document; it also begins and pads.
        **values: What else transformers' configuration has, `id2label` for example.

    Raises:
        ValueError: If there is no wrapper for it.
    """
    if type(model) not in WRAPPERS:
        known = ", ".join(kind.__name__ for kind in WRAPPERS)
        raise ValueError(f"no wrapper for a {type(model).__name__}, only for {known}")
    config_class, wrapper = WRAPPERS[type(model)]
    config = config_class.of(model.config, end, **values)  # type: ignore[arg-type]
    config.architectures = [wrapper.__name__]
    return wrapper(config, model).eval()  # type: ignore[call-arg]


def unwrap(wrapped: Any) -> nn.Module:
    """Return the model of ours in a transformers model of ours; the weights are shared."""
    if isinstance(wrapped, MagnetoForMaskedLM):
        model = MaskedLanguageModel(wrapped.config.core_config())
        model.text_encoder, model.head = wrapped.core, wrapped.head
        return model.eval()
    if isinstance(wrapped, MagnetoForSequenceClassification):
        classifier = TextClassifier(wrapped.config.classifier_config())
        classifier.text_encoder, classifier.head = wrapped.core, wrapped.classifier
        return classifier.eval()
    return wrapped.core


@contextmanager
def bars_on_a_terminal() -> Iterator[None]:
    """Keep transformers' progress bars off a stderr that is no terminal."""
    was = transformers_logging.is_progress_bar_enabled()
    if was and not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was:
            transformers_logging.enable_progress_bar()


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Yield a directory to write in; it takes its place when all is written, or never.

    Raises:
        FileExistsError: If the place is taken by something that is no empty directory.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} is there already and not empty")
    with directory_aside(directory) as aside:
        yield aside
        try:
            aside.rename(directory)  # in the place of an empty one, too
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise FileExistsError(f"{directory} was filled by another process meanwhile") from error
