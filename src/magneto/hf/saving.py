"""Write our models as directories that transformers reads."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Sequence
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
from magneto.hf.image_processor import MODES, MagnetoImageProcessor
from magneto.hf.images import MagnetoForImageClassification
from magneto.hf.modeling import MagnetoForCausalLM
from magneto.hf.registration import register
from magneto.hf.segmentation import MagnetoForSemanticSegmentation
from magneto.hf.segmentation_processor import MagnetoSegmentationProcessor
from magneto.hf.seq2seq import MagnetoForSeq2SeqLM
from magneto.hf.tokenizer import (
    EncoderInput,
    encoder_tokenizer,
    named_classes,
    transformers_tokenizer,
    translation_tokenizer,
)
from magneto.hf.transducer import MagnetoForTransducer, MagnetoSpeechFeatureExtractor
from magneto.hf.vision_language_wrappers import VISION_LANGUAGE_AUTO, VISION_LANGUAGE_WRAPPERS
from magneto.language.classification.model import TextClassifier
from magneto.language.masked_language import MaskedLanguageModel
from magneto.language.model import LanguageModel
from magneto.language.text_encoder import TextEncoder
from magneto.speech.config import SpeechDataConfig
from magneto.speech.model import Transducer
from magneto.speech.vocabulary import SpeechVocabulary
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


def export(
    model: nn.Module, tokenizer: Any, directory: Path, length: int, how: EncoderInput | None = None
) -> str:
    """Write config.json, model.safetensors and the tokenizer, all or nothing.

    Args:
        model: In fp32, on the CPU.
        tokenizer: Of `magneto.data.tokenizer`, a translation model's of
            `magneto.translation.vocabulary`; all but bytes are written for transformers too.
        directory: Where; must not exist, or be empty.
        length: Tokens the model was trained on, told to the tokenizer.
        how: How an encoder's input is put together, and its classes; None for a decoder.

    Returns:
        The name of the Auto class that loads it.

    Raises:
        FileExistsError: If the directory is not empty.
    """
    register()
    special: dict[str, Any] = {}
    if how is not None:
        special = {"bos_token_id": tokenizer.begin, "pad_token_id": tokenizer.pad, **how.values()}
    with whole_directory(directory) as aside, bars_on_a_terminal():
        wrapped = wrap(model, tokenizer.end, **special)
        wrapped.save_pretrained(aside)
        tokenizer.save(aside)
        if isinstance(model, TranslationModel):
            fast = translation_tokenizer(tokenizer, length)
        elif how is None:
            fast = transformers_tokenizer(tokenizer, length)
        else:
            fast = encoder_tokenizer(tokenizer, length, how)
        if fast is not None:
            fast.save_pretrained(aside)
            # transformers alone would read it, and cut texts otherwise than in training.
            (aside / "tokenizer.model").unlink(missing_ok=True)
    return AUTO[type(wrapped).__name__]


def export_images(
    model: ImageClassifier,
    directory: Path,
    labels: Sequence[str] = (),
    normalisation: str = "half",
    resize: int | None = None,
) -> str:
    """Write an image classifier's config.json, model.safetensors and preprocessor_config.json.

    The last is left out if the model reads other than grey or coloured pictures.

    Args:
        model: In fp32, on the CPU.
        directory: Where; must not exist, or be empty.
        labels: Names of the classes, in order; empty for LABEL_0, LABEL_1 and so on.
        normalisation: `data.normalisation` of the run.
        resize: `data.resize` of the run.

    Returns:
        The name of the Auto class that loads it.

    Raises:
        FileExistsError: If the directory is not empty.
        ValueError: If there are not as many names as classes.
    """
    config: Any = model.config
    if labels and len(labels) != config.classes:
        raise ValueError(f"{len(labels)} labels for {config.classes} classes")
    register()
    with whole_directory(directory) as aside, bars_on_a_terminal():
        wrapped = wrap(model, **(named_classes(labels) if labels else {}))
        wrapped.save_pretrained(aside)
        if config.channels in MODES:
            size, channels = config.image_size, config.channels
            processor = MagnetoImageProcessor(size, channels, normalisation, resize)
            processor.save_pretrained(aside)
    return AUTO[type(wrapped).__name__]


def export_segmenter(
    model: Segmenter,
    directory: Path,
    labels: Sequence[str],
    processor: MagnetoSegmentationProcessor,
) -> str:
    """Write a segmentation model's config.json, model.safetensors and preprocessor_config.json.

    Args:
        model: In fp32, on the CPU.
        directory: Where; must not exist, or be empty.
        labels: Names of the classes, in order.
        processor: From pictures to what the model reads.

    Returns:
        The name of the Auto class that loads it.

    Raises:
        FileExistsError: If the directory is not empty.
        ValueError: If there are not as many names as classes.
    """
    if len(labels) != model.config.classes:
        raise ValueError(f"{len(labels)} labels for {model.config.classes} classes")
    register()
    named = named_classes(labels)
    names = {"id2label": named["id2label"], "label2id": named["label2id"]}
    with whole_directory(directory) as aside, bars_on_a_terminal():
        wrapped = wrap(model, **names)
        wrapped.save_pretrained(aside)
        processor.save_pretrained(aside)
    return AUTO[type(wrapped).__name__]


def export_transducer(
    model: Transducer, vocabulary: SpeechVocabulary, data: SpeechDataConfig, directory: Path
) -> str:
    """Write a speech recogniser's model, its feature extractor and its tokenizer.

    Args:
        model: In fp32, on the CPU.
        vocabulary: Of its labels; all but bytes are written for transformers too.
        data: Of a run, with what it keeps.
        directory: Where; must not exist, or be empty.

    Returns:
        The name of the Auto class that loads it.

    Raises:
        FileExistsError: If the directory is not empty.
    """
    register()
    with whole_directory(directory) as aside, bars_on_a_terminal():
        wrapped = wrap(model)
        wrapped.save_pretrained(aside)
        MagnetoSpeechFeatureExtractor.of(data).save_pretrained(aside)
        vocabulary.save(aside)
        fast = transformers_tokenizer(vocabulary.tokenizer, LONGEST_TRANSCRIPT)
        if fast is not None:
            fast.save_pretrained(aside)
            (aside / "tokenizer.model").unlink(missing_ok=True)
    return AUTO[type(wrapped).__name__]
