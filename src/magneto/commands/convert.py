"""`magneto export` and `magneto convert`: conversion of weights from and to other libraries."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto import hf
from magneto.commands.shared import Parser, answer
from magneto.config import ConfigError, error_line
from magneto.data.tokenizer import load_tokenizer
from magneto.files import check_new, read_object, user_path, whole_directory
from magneto.runs import load_run
from magneto.tasks import TASKS
from magneto.vision_language.answers import read_answers
from magneto.vision_language.config import QuestionAnsweringConfig, VisionLanguageConfig

if TYPE_CHECKING:
    from torch import nn

# Files that are copied unchanged.
COPIED = ("preprocessor_config.json", "processor_config.json")
# Image normalisation of BEiT-3 with texts.
NORMALISATION = "half"
TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "merges.txt",
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm",
    "sentencepiece.model",
)  # fmt: skip
FORMATS = (
    "gpt2", "llama", "mistral", "bert", "bart", "marian", "vit", "beit", "kosmos_2_text_model",
    "timm_vit", "timm_beit", "timm_eva", "beit3", "torchscale",
)  # fmt: skip
CONFIG_KEYS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "id2label", "label2id", "problem_type",
)  # fmt: skip


def parser() -> Parser:
    made = Parser(
        "convert",
        "Convert weights of another library to Magneto's format. With --to, convert Magneto's "
        "weights to another format. Formats of Hugging Face transformers: GPT-2, Llama, Mistral, "
        "BERT, BART, Marian, ViT, BEiT and Kosmos-2's text model. Formats of timm: ViT, DeiT, "
        "BEiT, EVA-02 and BEiT-3. Other formats: torchscale models, and original BEiT-3 "
        "checkpoints (vision-language and image classification). If a model has parts that Magneto "
        "lacks, an error names the parts.",
        "magneto convert openai-community/gpt2 gpt2-magneto",
    )
    add = made.add_argument
    what = ("model of Hugging Face transformers (directory or hub name), or weight file "
            "(.safetensors, .pt, .pth, .bin) of timm, torchscale or the original "
            "BEiT-3")  # fmt: skip
    add("source", help=what)
    add("directory", type=Path, help="output directory, new or empty")
    add("--to", choices=FORMATS, help="output format (default: Magneto's)")
    what = ("JSON file with model arguments that are not stored with the weights, such as "
            '{"num_heads": 12}')  # fmt: skip
    add("--config", type=Path, metavar="FILE", help=what)
    what = "for BEiT-3 with texts: the original tokenizer beit3.spm"
    add("--tokenizer", type=Path, metavar="FILE", help=what)
    what = "for BEiT-3 fine-tuned on VQA: answer2label.txt of BEiT-3, or answers.json of a run"
    add("--labels", metavar="FILE", help=what)
    return made.with_json()


def main(words: Sequence[str]) -> int:
    args = parser().parse(words)
    from magneto.hf.conversion import WRITTEN
    from magneto.weights import check_finite

    hf.register()
    hide_bars()
    source = local(args.source)
    settings = read_object(args.config) if args.config else {}
    with whole_directory(args.directory) as directory:
        model, values = read(args.source, source, settings)
        check_finite(model.state_dict(), args.source)
        if args.tokenizer or args.labels:
            check_beit3(model, args)
        if args.labels:
            values |= hf.class_names(read_answers(args.labels))
        if args.tokenizer:
            values |= write_tokenizer(model, args.tokenizer, directory)
        loader = write(model, args.to, directory, values)
        if source.is_dir() and args.to not in WRITTEN:
            copy_tokenizer(source, directory)
    value = {"directory": str(args.directory), "model": loader}
    return answer(args, value, [f"{args.directory}: {loader}"])


def hide_bars() -> None:
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def export_parser() -> Parser:
    made = Parser(
        "export",
        "Export a run's model to Hugging Face transformers. The command prints the name of an Auto "
        "class. The class loads the model by from_pretrained(DIR, trust_remote_code=True). Loading "
        "needs Magneto. Hugging Face pipelines can load the exported model too.",
        "magneto export runs/first first-hf",
    ).with_run()
    made.add_argument("directory", type=Path, help="output directory")
    return made.with_json()


def export(words: Sequence[str]) -> int:
    args = export_parser().parse(words)
    check_new(args.directory)
    opened = load_run(args.run, args.weights, {"training.device": "cpu"})
    recipe, directory = opened.recipe, args.directory
    hide_bars()
    name = hf.export_model(recipe.task, opened.model, recipe.data, directory)
    how = "" if recipe.task not in TASKS else ".from_pretrained(DIR, trust_remote_code=True)"
    lines = [f"{directory}: load it with {name}{how}"]
    own = any(directory.glob("tokenizer.*")) and not (directory / "tokenizer_config.json").is_file()
    if recipe.task in TASKS and own:
        lines.append("transformers does not support this tokenizer; load it with "
                     f'magneto.data.tokenizer.load_tokenizer("{directory}")')  # fmt: skip
    value = {"directory": str(directory), "weights": str(opened.weights), "auto": name}
    return answer(args, value, lines)


def local(source: str) -> Path:
    path = user_path(source)
    if path.exists():
        return path
    from magneto.hf.conversion import SUFFIXES

    if path.suffix in SUFFIXES or source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise FileNotFoundError(f"no file or directory {source}")
    return download(source, *TOKENIZERS, *COPIED, "config.json", "generation_config.json", "*.spm")


def download(source: str, *patterns: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=list(patterns)))
    except Exception as error:  # errors of httpx and the hub have no common base
        raise FileNotFoundError(f"no directory {source}, and no such model on the hub "
                                f"({type(error).__name__})") from error  # fmt: skip


def read(name: str, source: Path, settings: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    from magneto.hf.conversion import (
        WEIGHTS,
        is_weight_directory,
        load_export,
        load_weight_file,
        load_with_config,
        read_config,
    )

    if source.is_file():
        return load_weight_file(source, settings), {}
    if is_weight_directory(source):
        if not user_path(name).exists():
            download(name, WEIGHTS)
        return load_weight_file(source, settings), {}
    if (source / "recipe.yaml").is_file():
        raise ConfigError([f"{source} is a run; use magneto export"])
    if settings:
        raise ConfigError([f"--config has no effect with {name}, which has a config.json; "
                           "omit --config"])  # fmt: skip
    place = source if user_path(name).exists() else name
    config = read_config(place)
    if config.model_type.startswith("magneto"):
        model = load_export(place, config)
    else:
        model, config = load_with_config(place)
    values = {key: getattr(config, key, None) for key in CONFIG_KEYS}
    return model, {key: value for key, value in values.items() if value is not None}


def write(model: nn.Module, to: str | None, directory: Path, values: dict[str, Any]) -> str:
    from magneto.hf.conversion import WEIGHTS, WRITTEN, save_weight_file
    from magneto.hf.export import auto_class

    if to is not None and to in WRITTEN:
        save_weight_file(model, to, directory)
        return f"{WEIGHTS} with {to}'s tensor names"
    if to is not None:
        theirs = hf.to_transformers(model, to, **values)
        theirs.save_pretrained(directory)
        return f"{type(theirs).__name__}.from_pretrained"
    wrapped = hf.wrap(model, **values)
    wrapped.save_pretrained(directory)
    if isinstance(model.config, VisionLanguageConfig):
        image_processor(model.config).save_pretrained(directory)
    return f"{auto_class(type(wrapped).__name__)}.from_pretrained(DIR, trust_remote_code=True)"


def image_processor(config: Any) -> hf.MagnetoImageProcessor:
    return hf.MagnetoImageProcessor(config.image_size, config.channels, NORMALISATION)


def check_beit3(model: nn.Module, args: argparse.Namespace) -> None:
    if not isinstance(model.config, VisionLanguageConfig) or args.to is not None:
        raise ConfigError(["--tokenizer and --labels are for BEiT-3 weights of a model that reads "
                           "texts, and have no effect with --to"])  # fmt: skip
    if args.labels and not isinstance(model.config, QuestionAnsweringConfig):
        raise ConfigError([f"--labels is for BEiT-3 fine-tuned on VQA, not for a "
                           f"{type(model).__name__}"])  # fmt: skip


def write_tokenizer(model: Any, source: Path, directory: Path) -> dict[str, Any]:
    from magneto.hf.export import save_processors, vision_language_assets
    from magneto.hf.torchscale import write_fairseq_order

    config, target = model.config, directory / "tokenizer.model"
    write_fairseq_order(user_path(source), target, config.vocab_size)
    assets = vision_language_assets(config, load_tokenizer(target), image_processor(config))
    save_processors(assets, directory)
    return dict(assets.values)


def copy_tokenizer(source: Path, directory: Path) -> None:
    for name in (*COPIED, "generation_config.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    if not any((source / name).is_file() for name in TOKENIZERS):
        return
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # exceptions of tokenizers, sentencepiece and transformers
        raise ValueError(f"the tokenizer in {source} is damaged: {error_line(error)}") from error
    tokenizer.save_pretrained(directory)
