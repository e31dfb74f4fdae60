"""Exports to the library transformers, and evaluation by lm-evaluation-harness."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors.torch import save_model
from torch import nn

from magneto.config import ConfigError, nearest
from magneto.data.tokenizer import load_tokenizer
from magneto.files import import_extra, read_json, whole_directory
from magneto.hf.processors import (
    FRAMED,
    MASKED,
    MASKED_AT_END,
    EncoderInput,
    MagnetoImageProcessor,
    MagnetoSpeechFeatureExtractor,
    MagnetoVisionLanguageProcessor,
    class_names,
    encoder_tokenizer,
    transformers_tokenizer,
    translation_tokenizer,
)
from magneto.hf.wrapper import CONFIGURATIONS, MagnetoPreTrainedModel, register
from magneto.translation.prepare import load_vocabulary
from magneto.vision.config import given_names

# Maximum length of the transcripts' tokenizer in tokens.
LONGEST_TRANSCRIPT = 10_000
# Texts per batch of lm-evaluation-harness.
HARNESS_BATCH = 16


def wrap(model: nn.Module, end: int | None = None, **values: Any) -> MagnetoPreTrainedModel:
    """Wrap a Magneto model for the library transformers.

    The wrapper is in evaluation mode and shares the weights of `model`.

    Args:
        model: Magneto model.
        end: Id of the end token, which also serves as begin and padding token.
        **values: Further fields of transformers' configuration, such as `id2label`.

    Raises:
        ValueError: If no wrapper exists for the model's class.
        ValueError: If `id2label` does not name each class.
    """
    from magneto import hf

    wrappers = [getattr(hf, name) for name in _auto_classes()]
    known = {wrapper.core_class: wrapper for wrapper in wrappers}
    if type(model) not in known:
        names = ", ".join(kind.__name__ for kind in known)
        raise ValueError(f"no wrapper for a {type(model).__name__}, only for {names}")
    classes = getattr(model.config, "classes", getattr(model.config, "answers", None))
    if (names := values.get("id2label")) and classes not in (None, len(names)):
        raise ValueError(f"{len(names)} class names for {classes} classes: name each class once")
    wrapper = known[type(model)]
    config = wrapper.config_class.of(model.config, end, **values)
    config.architectures = [wrapper.__name__]
    return wrapper(config, model).eval()


def auto_class(name: str) -> str:
    """Return the name of transformers' Auto class for a wrapper class."""
    found = _auto_classes()
    if name not in found:
        raise ValueError(f"architectures in config.json is {name!r}, not a model of Magneto"
                         f"{nearest(name, list(found))}")  # fmt: skip
    return found[name]


def _auto_classes() -> dict[str, str]:
    found: dict[str, str] = {}
    for auto, name in (pair for config in CONFIGURATIONS for pair in config.classes.items()):
        if auto.startswith("AutoModel"):
            found.setdefault(name, auto)
    return found


@dataclass(frozen=True)
class Assets:
    """Parts of an export besides the model.

    Attributes:
        values: Fields of transformers' configuration.
        tokenizer: Magneto's tokenizer.
        processors: Tokenizer and processors of the library transformers.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    processors: Sequence[Any] = ()


def save_export(model: nn.Module, directory: Path, assets: Assets) -> str:
    """Export a model (fp32, on the CPU) and its assets.

    The result is the name of the Auto class that loads the export.
    """
    register()
    wrapped = wrap(model, **assets.values)
    with whole_directory(directory) as temporary:
        wrapped.save_pretrained(temporary)
        save_processors(assets, temporary)
    return auto_class(type(wrapped).__name__)


def save_processors(assets: Assets, directory: Path) -> None:
    """Write the tokenizer and the processors into a directory."""
    if assets.tokenizer is not None:
        assets.tokenizer.save(directory)
    for processor in assets.processors:
        if processor is not None:
            processor.save_pretrained(directory)
    if (directory / "tokenizer_config.json").is_file():
        # transformers would read it itself, with other results than in training.
        (directory / "tokenizer.model").unlink(missing_ok=True)


def decoder_assets(tokenizer: Any, length: int) -> Assets:
    """Return a language model's assets, for inputs of at most `length` tokens."""
    processor = transformers_tokenizer(tokenizer, length)
    return Assets({"end": tokenizer.end}, tokenizer, [processor])


def encoder_assets(tokenizer: Any, length: int, template: EncoderInput) -> Assets:
    """Return a text encoder's assets, for inputs of at most `length` tokens."""
    processor = encoder_tokenizer(tokenizer, length, template)
    return Assets(special_tokens(tokenizer), tokenizer, [processor])


def special_tokens(tokenizer: Any) -> dict[str, int]:
    return {
        "bos_token_id": tokenizer.begin, "eos_token_id": tokenizer.end,
        "pad_token_id": tokenizer.pad,
    }  # fmt: skip


def vision_language_assets(
    config: Any, tokenizer: Any, images: MagnetoImageProcessor, labels: Sequence[str] = ()
) -> Assets:
    """Return a vision-language model's assets.

    `labels` are the names of the model's classes.
    """
    template = MASKED_AT_END if config.ends_in_mask else FRAMED
    fast = encoder_tokenizer(tokenizer, config.max_length, template)
    processor = images if fast is None else MagnetoVisionLanguageProcessor(images, fast)
    named = {"mask_token_id": tokenizer.mask, **class_names(labels)}
    return Assets(special_tokens(tokenizer) | named, tokenizer, [processor])


def _text_classifier(config: Any, data: Any) -> Assets:
    between = "{end} {end}" if data.separator == "double" else "{end}"
    template = EncoderInput(
        single="{begin} $A {end}",
        pair=f"{{begin}} $A {between} $B:1 {{end}}:1",
        types=config.token_types,
    )
    kind = {"problem_type": "regression", "num_labels": 1}
    if not data.regression:
        kind = {"problem_type": "single_label_classification", **class_names(data.labels)}
    assets = encoder_assets(load_tokenizer(data.tokenizer), data.max_length, template)
    return replace(assets, values={**assets.values, **kind})


def _translator(config: Any, data: Any) -> Assets:
    vocabulary = load_vocabulary(Path(data.tokenizer))
    processor = translation_tokenizer(vocabulary, data.max_length)
    return Assets({"end": vocabulary.end}, vocabulary, [processor])


def _speech_recogniser(config: Any, data: Any) -> Assets:
    tokenizer = load_tokenizer(data.tokenizer)
    processor = transformers_tokenizer(tokenizer, LONGEST_TRANSCRIPT)
    return Assets({}, tokenizer, [MagnetoSpeechFeatureExtractor.of(data), processor])


def _image_classifier(config: Any, data: Any) -> Assets:
    names = given_names(data) or ()
    # Classes of the model without a name are named by their number.
    labels = class_names([*names, *map(str, range(len(names), config.classes))])
    values = {"problem_type": "single_label_classification", **labels}
    return Assets(values, processors=[_centre_crop(config, data)])


def _segmenter(config: Any, data: Any) -> Assets:
    processor = MagnetoImageProcessor(0, config.channels, data.normalisation, fit=data.fit)
    return Assets(class_names(data.classes), processors=[processor])


def _centre_crop(config: Any, data: Any) -> MagnetoImageProcessor:
    resize = data.resize or config.image_size
    return MagnetoImageProcessor(config.image_size, config.channels, data.normalisation, resize)


def _vision_language(config: Any, data: Any, labels: Sequence[str] = ()) -> Assets:
    images = MagnetoImageProcessor(config.image_size, config.channels, data.normalisation)
    return vision_language_assets(config, load_tokenizer(data.tokenizer), images, labels)


ASSETS: Mapping[str, Callable[[Any, Any], Assets]] = {
    "causal-lm": lambda config, data: decoder_assets(
        load_tokenizer(data.tokenizer), data.max_length
    ),
    "masked-lm": lambda config, data: encoder_assets(
        load_tokenizer(data.tokenizer), data.max_length, MASKED
    ),
    "text-classification": _text_classifier,
    "translation": _translator,
    "transducer": _speech_recogniser,
    "image-classification": _image_classifier,
    "segmentation": _segmenter,
    "vision-language-modelling": lambda config, data: vision_language_assets(
        config, load_tokenizer(data.tokenizer), _centre_crop(config, data)
    ),
    "visual-question-answering": lambda config, data: _vision_language(
        config, data, read_json(Path(data.answers))
    ),
    "visual-reasoning": lambda config, data: _vision_language(config, data, ("False", "True")),
    "image-text-retrieval": _vision_language,
    "image-captioning": _vision_language,
}
"""For each task, a function that makes `Assets` from the configurations of model and data."""


def save_custom(model: nn.Module, data: Any, directory: Path) -> str:
    """Write a custom task's weights, and return the name of the model's class."""
    with whole_directory(directory) as temporary:
        save_model(model, str(temporary / "model.safetensors"))
    return f"{type(model).__module__}.{type(model).__qualname__}"


def export_model(task: str, model: nn.Module, data: Any, directory: Path) -> str:
    """Export a run's model (fp32, on the CPU) to a new or empty directory.

    `data` is the section `data` of the run's recipe. A custom task's module may define the function
    `export(model, data, directory)`. If the module has no function `export`, `save_custom` exports
    the model.

    Returns:
        Name of the Auto class that loads the export. For a custom task: the result of the function
        `export`, or the name of the model's class if `save_custom` exports the model.

    Raises:
        ConfigError: If the task has no export, or if a vision-language model reads only images or
            only texts (`data.input`).
        FileExistsError: If the directory is not empty.
    """
    module, _, custom = task.partition(":")
    if custom:
        return getattr(import_module(module), "export", save_custom)(model, data, directory)
    if task not in ASSETS:
        raise ConfigError([f"magneto export: task {task} has no export to the library "
                           "transformers. Open the run with magneto.runs.load_run."])  # fmt: skip
    if (read := getattr(data, "input", "both")) != "both":
        raise ConfigError([f"magneto export: the run reads only one input (data.input {read!r}), "
                           "but an exported model would read images and texts. Use magneto "
                           "predict."])  # fmt: skip
    return save_export(model, directory, ASSETS[task](model.config, data))


def task_manager(include: Path | None = None, builtin: bool = True) -> Any:
    """Return the task manager of lm-evaluation-harness.

    `include` is a folder with further tasks as .yaml files.
    """
    # The built-in tasks are thousands of files: read them only if needed.
    return _library("lm_eval.tasks").TaskManager(include_path=include, include_defaults=builtin)


def _library(name: str) -> Any:
    return import_extra(name, "eval", "tasks of lm-evaluation-harness need lm-eval")


def check_tasks(names: Sequence[str], manager: Any, ours: Sequence[str] = ()) -> None:
    """Raise ValueError if a name is neither a task of lm-evaluation-harness nor in `ours`."""
    known = [*ours, *manager.all_tasks]
    unknown = [n for n in names if n not in known and not manager.match_tasks([n])]
    if unknown:
        raise ValueError("\n".join(
            f"--tasks: no task {name!r} in Magneto or lm-evaluation-harness{nearest(name, known)}"
            for name in unknown
        ))  # fmt: skip


def harness_model(model: nn.Module, tokenizer: Any, length: int) -> Any:
    """Wrap a language model for lm-evaluation-harness.

    As in training, each text begins with the end token. A text of more than `length` tokens is
    truncated on the left.
    """
    from tokenizers.processors import TemplateProcessing

    fast = transformers_tokenizer(tokenizer, length)
    if fast is None or not fast.is_fast:
        raise ValueError("lm-evaluation-harness needs a run with a tokenizer.json (data.tokenizer "
                         "'bpe'). This run has another tokenizer.")  # fmt: skip
    end = (fast.eos_token, fast.eos_token_id)
    fast.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end[0]} $A", pair=f"{end[0]} $A $B", special_tokens=[end]
    )
    return _library("lm_eval.models.huggingface").HFLM(
        pretrained=wrap(model, tokenizer.end),
        tokenizer=fast,
        max_length=length,
        batch_size=HARNESS_BATCH,
        device=str(next(model.parameters()).device),
        add_bos_token=True,
    )


def harness_scores(
    wrapped: Any,
    names: Sequence[str],
    num_fewshot: int,
    seed: int,
    manager: Any,
    *,
    limit: int | None = None,
    samples: bool = False,
) -> dict[str, Any]:
    """Evaluate tasks of lm-evaluation-harness.

    The key "results" has the metrics of each task. If `samples` is set, the key "samples" has the
    log-likelihoods of each question.

    Raises:
        ValueError: If a task's data cannot be loaded.
    """
    library = _library("lm_eval")
    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        found = library.simple_evaluate(
            model=wrapped,
            tasks=list(names),
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            log_samples=samples,
            fewshot_random_seed=seed,
            bootstrap_iters=0,
        )
    except (OSError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"lm-evaluation-harness cannot run {', '.join(names)}: {first}. Without internet, "
            "give --include DIR, a folder of .yaml task files that read local data."
        ) from error
    return found
