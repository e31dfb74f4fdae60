"""Write our models as directories that transformers reads: `magneto export`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors.torch import save_model
from torch import nn

from magneto.config import ConfigError
from magneto.data.tokenizer import load_tokenizer
from magneto.files import directory_aside, read_json
from magneto.hf.configuration import CONFIGURATIONS, register
from magneto.hf.processors import (
    MagnetoImageProcessor,
    MagnetoSpeechFeatureExtractor,
    MagnetoVisionLanguageProcessor,
)
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
from magneto.translation.prepare import load_vocabulary
from magneto.vision.config import given_names

# Tokens; only told to transformers' tokenizer.
LONGEST_TRANSCRIPT = 10_000


def wrap(model: nn.Module, end: int | None = None, **values: Any) -> MagnetoPreTrainedModel:
    """Return a model of ours as transformers', in evaluation mode; the weights are shared.

    Args:
        model: Of ours.
        end: Number of the token that ends a document; it also begins and pads.
        **values: What else transformers' configuration has, `id2label` for example.

    Raises:
        ValueError: If there is no wrapper for it.
    """
    from magneto import hf

    wrappers = [getattr(hf, name) for name in _auto_classes()]
    known = {wrapper.core_class: wrapper for wrapper in wrappers}
    if type(model) not in known:
        names = ", ".join(kind.__name__ for kind in known)
        raise ValueError(f"no wrapper for a {type(model).__name__}, only for {names}")
    wrapper = known[type(model)]
    config = wrapper.config_class.of(model.config, end, **values)
    config.architectures = [wrapper.__name__]
    return wrapper(config, model).eval()


def auto_class(name: str) -> str:
    """Return the name of the Auto class by which one of our wrappers is loaded, by its name."""
    return _auto_classes()[name]


def _auto_classes() -> dict[str, str]:
    found: dict[str, str] = {}
    for auto, name in (pair for config in CONFIGURATIONS for pair in config.classes.items()):
        if auto.startswith("AutoModel"):
            found.setdefault(name, auto)
    return found


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
        aside.rename(directory)  # in the place of an empty one, too; never of one that is not


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


def save_export(model: nn.Module, directory: Path, assets: Assets) -> str:
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
    with whole_directory(directory) as aside:
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


def read_by_decoder(tokenizer: Any, length: int) -> Assets:
    """Return what a language model has beside its weights.

    All tokenizers of `magneto.data.tokenizer` but bytes are written for transformers too, and are
    told the length that the model was trained on.
    """
    reader = transformers_tokenizer(tokenizer, length)
    return Assets({"end": tokenizer.end}, tokenizer, [reader])


def read_by_encoder(tokenizer: Any, length: int, how: EncoderInput) -> Assets:
    """Return what a text encoder, whose input is put together so, has beside its weights."""
    values = {"end": tokenizer.end, "bos_token_id": tokenizer.begin, "pad_token_id": tokenizer.pad}
    reader = encoder_tokenizer(tokenizer, length, how)
    return Assets(values | how.values(), tokenizer, [reader])


def images_and_texts(
    config: Any, tokenizer: Any, processor: MagnetoImageProcessor, labels: Sequence[str] = ()
) -> Assets:
    """Return what a model of vision and language has beside its weights."""
    how = MASKED_AT_END if config.ends_in_mask else FRAMED
    fast = encoder_tokenizer(tokenizer, config.max_length, how)
    reader = processor if fast is None else MagnetoVisionLanguageProcessor(processor, fast)
    values = {"end": tokenizer.end, **special_tokens(tokenizer), **class_names(labels)}
    return Assets(values, tokenizer, [reader])


def _text_classifier(config: Any, data: Any) -> Assets:
    between = "{end} {end}" if data.separator == "double" else "{end}"
    how = EncoderInput(
        single="{begin} $A {end}",
        pair=f"{{begin}} $A {between} $B:1 {{end}}:1",
        types=config.token_types,
        labels=data.labels or (),
        number="number" if data.regression else "none",
    )
    return read_by_encoder(load_tokenizer(data.tokenizer), data.max_length, how)


def _translator(config: Any, data: Any) -> Assets:
    vocabulary = load_vocabulary(Path(data.tokenizer))
    reader = translation_tokenizer(vocabulary, data.max_length)
    return Assets({"end": vocabulary.end}, vocabulary, [reader])


def _recogniser(config: Any, data: Any) -> Assets:
    tokenizer = load_tokenizer(data.tokenizer)
    reader = transformers_tokenizer(tokenizer, LONGEST_TRANSCRIPT)
    return Assets({}, tokenizer, [MagnetoSpeechFeatureExtractor.of(data), reader])


def _image_classifier(config: Any, data: Any) -> Assets:
    names = given_names(data) or ()
    # What the model has beyond the data's classes is called by its number.
    labels = class_names([*names, *map(str, range(len(names), config.classes))])
    values = {"problem_type": "single_label_classification", **labels}
    return Assets(values, readers=[_cut_images(config, data)])


def _segmenter(config: Any, data: Any) -> Assets:
    processor = MagnetoImageProcessor(0, config.channels, data.normalisation, fit=data.fit)
    return Assets(class_names(data.classes), readers=[processor])


def _cut_images(config: Any, data: Any) -> MagnetoImageProcessor:
    resize = data.resize or config.image_size
    return MagnetoImageProcessor(config.image_size, config.channels, data.normalisation, resize)


def _whole_images(config: Any, data: Any, labels: Sequence[str] = ()) -> Assets:
    processor = MagnetoImageProcessor(config.image_size, config.channels, data.normalisation)
    return images_and_texts(config, load_tokenizer(data.tokenizer), processor, labels)


ASSETS: Mapping[str, Callable[[Any, Any], Assets]] = {
    "causal-lm": lambda config, data: read_by_decoder(
        load_tokenizer(data.tokenizer), data.max_length
    ),
    "masked-lm": lambda config, data: read_by_encoder(
        load_tokenizer(data.tokenizer), data.max_length, MASKED
    ),
    "text-classification": _text_classifier,
    "translation": _translator,
    "transducer": _recogniser,
    "image-classification": _image_classifier,
    "segmentation": _segmenter,
    "vision-language-modelling": lambda config, data: images_and_texts(
        config, load_tokenizer(data.tokenizer), _cut_images(config, data)
    ),
    "visual-question-answering": lambda config, data: _whole_images(
        config, data, read_json(Path(data.answers))
    ),
    "visual-reasoning": lambda config, data: _whole_images(config, data, ("False", "True")),
    "image-text-retrieval": _whole_images,
    "image-captioning": _whole_images,
}
"""What the model of a task has beside its weights, by its configuration and the run's `data`."""


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
    if own:
        return getattr(import_module(module), "export", save_own)(model, data, directory)
    if task not in ASSETS:
        raise ConfigError([f"magneto export: {task} has no form in transformers; "
                           "magneto.runs.load_run opens the run"])  # fmt: skip
    return save_export(model, directory, ASSETS[task](model.config, data))
