"""`magneto export`: write a run's model as a directory that transformers reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from magneto.config import ConfigError
from magneto.data.tokenizer import load_tokenizer
from magneto.files import read_json
from magneto.hf.image_processor import MODES, MagnetoImageProcessor
from magneto.hf.registration import register
from magneto.hf.saving import AUTO, bars_on_a_terminal, whole_directory, wrap
from magneto.hf.segmentation_processor import MagnetoSegmentationProcessor
from magneto.hf.tokenizer import (
    MASKED,
    EncoderInput,
    encoder_tokenizer,
    named_classes,
    transformers_tokenizer,
    translation_tokenizer,
)
from magneto.hf.transducer import MagnetoSpeechFeatureExtractor
from magneto.hf.vision_language_processor import MagnetoWholeImageProcessor
from magneto.hf.vision_language_saving import (
    FRAMED,
    MASKED_AT_END,
    class_names,
    save_processor,
    special_tokens,
)
from magneto.speech.config import SpeechDataConfig
from magneto.speech.model import Transducer
from magneto.speech.vocabulary import SpeechVocabulary
from magneto.translation.model import TranslationModel
from magneto.translation.vocabulary import load_vocabulary
from magneto.vision.classification.config import given_names
from magneto.vision.classification.model import ImageClassifier
from magneto.vision.segmentation.model import Segmenter

# Tokens; only told to transformers' tokenizer.
LONGEST_TRANSCRIPT = 10_000


def export_model(task: str, model: nn.Module, data: Any, directory: Path) -> str:
    """Write the model of a run, and what reads its inputs, for others to load.

    Args:
        task: The run's, as its recipe says. What is none of the package's is exported by the
            function `export(model, data, directory)` of its module.
        model: With the run's weights, in fp32, on the CPU.
        data: The `data` section of the run's resolved recipe: `magneto.runs.load_run` fills in the
            tokenizer and the classes that the run keeps.
        directory: Where; not there yet, or empty.

    Returns:
        The name of the Auto class whose `from_pretrained(directory)` loads it.

    Raises:
        ConfigError: If the task has no export.
        FileExistsError: If the directory is not empty.
    """
    module, _, own = task.partition(":")
    write = getattr(import_module(module), "export", None) if own else EXPORTS.get(task)
    if write is None:
        raise ConfigError([f"magneto export: {task} has no form in transformers; "
                           "magneto.runs.load_run opens the run"])  # fmt: skip
    return write(model, data, directory)


def _causal_language_model(model: nn.Module, data: Any, directory: Path) -> str:
    return export_text(model, load_tokenizer(data.tokenizer), directory, data.max_length)


def _masked_language_model(model: nn.Module, data: Any, directory: Path) -> str:
    return export_text(model, load_tokenizer(data.tokenizer), directory, data.max_length, MASKED)


def _text_classifier(model: Any, data: Any, directory: Path) -> str:
    between = "{end} {end}" if data.separator == "double" else "{end}"
    how = EncoderInput(
        single="{begin} $A {end}",
        pair=f"{{begin}} $A {between} $B:1 {{end}}:1",
        types=model.config.token_types,
        labels=data.labels or (),
        number="number" if data.number else "none",
    )
    return export_text(model, load_tokenizer(data.tokenizer), directory, data.max_length, how)


def _translator(model: nn.Module, data: Any, directory: Path) -> str:
    return export_text(model, load_vocabulary(Path(data.tokenizer)), directory, data.max_length)


def _recogniser(model: Any, data: Any, directory: Path) -> str:
    vocabulary = SpeechVocabulary(load_tokenizer(data.tokenizer))
    return export_transducer(model, vocabulary, data, directory)


def _image_classifier(model: Any, data: Any, directory: Path) -> str:
    names = given_names(data) or ()
    # What the model has beyond the data's classes is called by its number.
    labels = [*names, *map(str, range(len(names), model.config.classes))]
    return export_images(model, directory, labels, data.normalisation, data.resize)


def _segmenter(model: Any, data: Any, directory: Path) -> str:
    processor = MagnetoSegmentationProcessor(model.config.channels, data.normalisation, data.fit)
    return export_segmenter(model, directory, data.classes, processor)


def _masked_data_model(model: Any, data: Any, directory: Path) -> str:
    size, channels = model.config.image_size, model.config.channels
    processor = MagnetoImageProcessor(size, channels, data.normalisation, data.resize)
    return export_vision_language(model, load_tokenizer(data.tokenizer), directory, processor)


def _answerer(model: Any, data: Any, directory: Path) -> str:
    return _of_whole_images(model, data, directory, read_json(Path(data.answers)))


def _reasoner(model: Any, data: Any, directory: Path) -> str:
    return _of_whole_images(model, data, directory, ("False", "True"))


def _of_whole_images(model: Any, data: Any, directory: Path, labels: Sequence[str] = ()) -> str:
    size, channels = model.config.image_size, model.config.channels
    processor = MagnetoWholeImageProcessor(size, channels, data.normalisation)
    tokenizer = load_tokenizer(data.tokenizer)
    return export_vision_language(model, tokenizer, directory, processor, labels)


EXPORTS: Mapping[str, Callable[[nn.Module, Any, Path], str]] = {
    "causal-lm": _causal_language_model,
    "masked-lm": _masked_language_model,
    "text-classification": _text_classifier,
    "translation": _translator,
    "transducer": _recogniser,
    "image-classification": _image_classifier,
    "segmentation": _segmenter,
    "vision-language-modelling": _masked_data_model,
    "visual-question-answering": _answerer,
    "visual-reasoning": _reasoner,
    "image-text-retrieval": _of_whole_images,
    "image-captioning": _of_whole_images,
}
"""What writes a run's model, by the name of its task."""


def export_text(
    model: nn.Module, tokenizer: Any, directory: Path, length: int, how: EncoderInput | None = None
) -> str:
    """Write a model of texts and its tokenizer, all or nothing.

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


def export_vision_language(
    model: nn.Module,
    tokenizer: Any,
    directory: Path,
    processor: MagnetoImageProcessor,
    labels: Sequence[str] = (),
) -> str:
    """Write a model of vision and language, with what reads its images and texts.

    Args:
        model: In fp32, on the CPU.
        tokenizer: Of `magneto.data.tokenizer`; all but bytes are written for transformers too.
        directory: Where; must not exist, or be empty.
        processor: From pictures to what the model reads.
        labels: Names of the classes, in order; empty if it has none.

    Returns:
        The name of the Auto class that loads it.

    Raises:
        FileExistsError: If the directory is not empty.
    """
    register()
    config: Any = model.config
    with whole_directory(directory) as aside, bars_on_a_terminal():
        wrapped = wrap(model, tokenizer.end, **special_tokens(tokenizer), **class_names(labels))
        wrapped.save_pretrained(aside)
        how = MASKED_AT_END if config.ends_in_mask else FRAMED
        save_processor(tokenizer, processor, config.max_length, aside, how)
    return AUTO[type(wrapped).__name__]
