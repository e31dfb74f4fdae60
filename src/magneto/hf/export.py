"""Write our models as directories that transformers reads: `magneto export`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors.torch import save_model
from torch import nn
from transformers.utils import logging as transformers_logging

from magneto.config import ConfigError
from magneto.data.tokenizer import load_tokenizer
from magneto.files import directory_aside, read_json
from magneto.hf.configuration import CONFIGURATIONS, MagnetoConfig, register
from magneto.hf.processors import (
    MODES,
    MagnetoImageProcessor,
    MagnetoSegmentationProcessor,
    MagnetoVisionLanguageProcessor,
    MagnetoWholeImageProcessor,
)
from magneto.hf.speech import MagnetoSpeechFeatureExtractor
from magneto.hf.tokenizer import (
    FRAMED,
    MASKED,
    MASKED_AT_END,
    EncoderInput,
    class_names,
    encoder_tokenizer,
    special_tokens,
    transformers_tokenizer,
    translation_tokenizer,
)
from magneto.hf.wrapper import MagnetoPreTrainedModel
from magneto.speech.vocabulary import SpeechVocabulary
from magneto.translation.model import TranslationModel
from magneto.translation.prepare import load_vocabulary
from magneto.vision.classification import given_names
from magneto.vision.encoder import ImageClassifier

# Tokens; only told to transformers' tokenizer.
LONGEST_TRANSCRIPT = 10_000


def wrappers() -> Iterator[tuple[type[MagnetoConfig], str, type[MagnetoPreTrainedModel]]]:
    """Yield each configuration with its Auto classes of models, and with what they load."""
    from magneto import hf

    for config in CONFIGURATIONS:
        for auto, name in config.classes.items():
            if auto.startswith("AutoModel"):
                yield config, auto, getattr(hf, name)


def wrap(model: nn.Module, end: int | None = None, **values: Any) -> MagnetoPreTrainedModel:
    """Return a model of ours as transformers', in evaluation mode; the weights are shared.

    Args:
        model: Of ours.
        end: Number of the token that ends a document; it also begins and pads.
        **values: What else transformers' configuration has, `id2label` for example.

    Raises:
        ValueError: If there is no wrapper for it.
    """
    known = {wrapper.core_class: (config, wrapper) for config, _, wrapper in wrappers()}
    if type(model) not in known:
        names = ", ".join(kind.__name__ for kind in known)
        raise ValueError(f"no wrapper for a {type(model).__name__}, only for {names}")
    config_class, wrapper = known[type(model)]
    config = config_class.of(model.config, end, **values)  # type: ignore[arg-type]
    config.architectures = [wrapper.__name__]
    return wrapper(config, model).eval()


def auto_class(name: str) -> str:
    """Return the name of the Auto class by which one of our wrappers is loaded, by its name."""
    return next(auto for _, auto, wrapper in wrappers() if wrapper.__name__ == name)


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


@dataclass(frozen=True)
class Assets:
    """What a directory has beside a model's weights.

    Attributes:
        values: Of transformers' configuration, `id2label` for example.
        tokenizer: Of `magneto.data.tokenizer`; None if the model reads no texts.
        readers: Of transformers: its tokenizer of the same, processors of images or sounds.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    readers: Sequence[Any] = ()


def save(model: nn.Module, directory: Path, assets: Assets) -> str:
    """Write a model and what reads its inputs, all or nothing.

    Args:
        model: Of ours, in fp32, on the CPU.
        directory: Where; must not exist, or be empty.
        assets: What is written with it.

    Returns:
        The name of the Auto class that loads it.

    Raises:
        FileExistsError: If the directory is not empty.
        ValueError: If there are not as many names as classes.
    """
    register()
    wrapped = wrap(model, **assets.values)
    classes, names = getattr(model.config, "classes", None), assets.values.get("id2label", ())
    if names and classes not in (None, len(names)):
        raise ValueError(f"{len(names)} labels for {classes} classes")
    with whole_directory(directory) as aside, bars_on_a_terminal():
        wrapped.save_pretrained(aside)
        save_readers(assets, aside)
    return auto_class(type(wrapped).__name__)


def save_readers(assets: Assets, directory: Path) -> None:
    """Write a tokenizer as ours and as transformers', and processors."""
    if assets.tokenizer is not None:
        assets.tokenizer.save(directory)
    for reader in assets.readers:
        if reader is not None:
            reader.save_pretrained(directory)
    if (directory / "tokenizer_config.json").is_file():
        # transformers alone would read it, and cut texts otherwise than in training.
        (directory / "tokenizer.model").unlink(missing_ok=True)


def export_text(
    model: nn.Module, tokenizer: Any, directory: Path, length: int, how: EncoderInput | None = None
) -> str:
    """Write a model of texts and its tokenizer; see `save`.

    Args:
        model: In fp32, on the CPU.
        tokenizer: Of `magneto.data.tokenizer`, a translation model's of
            `magneto.translation.prepare`; all but bytes are written for transformers too.
        directory: Where; must not exist, or be empty.
        length: Tokens the model was trained on, told to the tokenizer.
        how: How an encoder's input is put together, and its classes; None for a decoder.
    """
    values: dict[str, Any] = {"end": tokenizer.end}
    if isinstance(model, TranslationModel):
        fast = translation_tokenizer(tokenizer, length)
    elif how is None:
        fast = transformers_tokenizer(tokenizer, length)
    else:
        fast = encoder_tokenizer(tokenizer, length, how)
        values |= {"bos_token_id": tokenizer.begin, "pad_token_id": tokenizer.pad, **how.values()}
    return save(model, directory, Assets(values, tokenizer, [fast]))


def export_images(
    model: ImageClassifier,
    directory: Path,
    labels: Sequence[str] = (),
    normalisation: str = "half",
    resize: int | None = None,
) -> str:
    """Write an image classifier and its image processor; see `save`.

    The processor is left out if the model reads other than grey or coloured pictures.

    Args:
        model: In fp32, on the CPU.
        directory: Where; must not exist, or be empty.
        labels: Names of the classes, in order; empty for LABEL_0, LABEL_1 and so on.
        normalisation: `data.normalisation` of the run.
        resize: `data.resize` of the run.
    """
    config: Any = model.config
    kind = {"problem_type": "single_label_classification"} if labels else {}
    processor = None
    if config.channels in MODES:
        processor = MagnetoImageProcessor(config.image_size, config.channels, normalisation, resize)
    return save(model, directory, Assets(kind | class_names(labels), readers=[processor]))


def whole_image_processor(config: Any, normalisation: str) -> MagnetoWholeImageProcessor:
    """Return what reads pictures for a fine-tuned model; of other than 1 or 3 channels, for 3."""
    channels = config.channels if config.channels in MODES else 3
    return MagnetoWholeImageProcessor(config.image_size, channels, normalisation)


def images_and_texts(
    config: Any, tokenizer: Any, processor: MagnetoImageProcessor, labels: Sequence[str] = ()
) -> Assets:
    """Return what a model of vision and language has beside its weights.

    Args:
        config: Of the model.
        tokenizer: Of `magneto.data.tokenizer`; all but bytes are written for transformers too.
        processor: From pictures to what the model reads.
        labels: Names of the classes, in order; empty if it has none.
    """
    how = MASKED_AT_END if config.ends_in_mask else FRAMED
    fast = encoder_tokenizer(tokenizer, config.max_length, how)
    reader = processor if fast is None else MagnetoVisionLanguageProcessor(processor, fast)
    values = {"end": tokenizer.end, **special_tokens(tokenizer), **class_names(labels)}
    return Assets(values, tokenizer, [reader])


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


def _recogniser(model: nn.Module, data: Any, directory: Path) -> str:
    vocabulary = SpeechVocabulary(load_tokenizer(data.tokenizer))
    fast = transformers_tokenizer(vocabulary.tokenizer, LONGEST_TRANSCRIPT)
    extractor = MagnetoSpeechFeatureExtractor.of(data)
    return save(model, directory, Assets({}, vocabulary, [extractor, fast]))


def _image_classifier(model: Any, data: Any, directory: Path) -> str:
    names = given_names(data) or ()
    # What the model has beyond the data's classes is called by its number.
    labels = [*names, *map(str, range(len(names), model.config.classes))]
    return export_images(model, directory, labels, data.normalisation, data.resize)


def _segmenter(model: Any, data: Any, directory: Path) -> str:
    processor = MagnetoSegmentationProcessor(model.config.channels, data.normalisation, data.fit)
    return save(model, directory, Assets(class_names(data.classes), readers=[processor]))


def _masked_data_model(model: Any, data: Any, directory: Path) -> str:
    size, channels = model.config.image_size, model.config.channels
    processor = MagnetoImageProcessor(size, channels, data.normalisation, data.resize)
    tokenizer = load_tokenizer(data.tokenizer)
    return save(model, directory, images_and_texts(model.config, tokenizer, processor))


def _answerer(model: Any, data: Any, directory: Path) -> str:
    return _of_whole_images(model, data, directory, read_json(Path(data.answers)))


def _reasoner(model: Any, data: Any, directory: Path) -> str:
    return _of_whole_images(model, data, directory, ("False", "True"))


def _of_whole_images(model: Any, data: Any, directory: Path, labels: Sequence[str] = ()) -> str:
    processor = MagnetoWholeImageProcessor(
        model.config.image_size, model.config.channels, data.normalisation
    )
    tokenizer = load_tokenizer(data.tokenizer)
    return save(model, directory, images_and_texts(model.config, tokenizer, processor, labels))


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


def save_own(model: nn.Module, data: Any, directory: Path) -> str:
    """Write the weights of a model of a task of one's own; return the name of its class."""
    with whole_directory(directory) as aside:
        save_model(model, str(aside / "model.safetensors"))
    return f"{type(model).__module__}.{type(model).__qualname__}"


def export_model(task: str, model: nn.Module, data: Any, directory: Path) -> str:
    """Write the model of a run, and what reads its inputs, for others to load.

    Args:
        task: The run's, as its recipe says. What is none of the package's is exported by the
            function `export(model, data, directory)` of its module, or else by `save_own`.
        model: With the run's weights, in fp32, on the CPU.
        data: The `data` section of the run's resolved recipe: `magneto.runs.load_run` fills in the
            tokenizer and the classes that the run keeps.
        directory: Where; not there yet, or empty.

    Returns:
        The name of the Auto class whose `from_pretrained(directory)` loads it; of a model of a task
        of one's own that of its class.

    Raises:
        ConfigError: If the task has no export.
        FileExistsError: If the directory is not empty.
    """
    module, _, own = task.partition(":")
    write = getattr(import_module(module), "export", save_own) if own else EXPORTS.get(task)
    if write is None:
        raise ConfigError([f"magneto export: {task} has no form in transformers; "
                           "magneto.runs.load_run opens the run"])  # fmt: skip
    return write(model, data, directory)
