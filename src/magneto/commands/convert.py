"""`magneto export` and `magneto convert`: models for others, and others' weights as ours."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto import hf
from magneto.commands.shared import Parser, answer
from magneto.config import ConfigError
from magneto.data.tokenizer import load_tokenizer
from magneto.files import read_object, user_path
from magneto.runs import load_run
from magneto.tasks import TASKS
from magneto.vision_language.answers import read_answers
from magneto.vision_language.config import VisionLanguageConfig

if TYPE_CHECKING:
    from torch import nn

# Assets the weights; they come along as they are.
COPIED = ("preprocessor_config.json", "processor_config.json")
# In which BEiT-3 reads images with texts.
NORMALISATION = "half"
TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "merges.txt",
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm",
    "sentencepiece.model",
)  # fmt: skip
ENDS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "id2label", "label2id", "problem_type",
)  # fmt: skip


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "convert",
        "Convert GPT-2, Llama, Mistral, BERT, BART, Marian, ViT, BEiT and Kosmos-2's text "
        "model of transformers, timm's ViT, DeiT, BEiT, EVA-02 and BEiT-3, "
        "torchscale's models and BEiT-3 (of images, and of images with texts) by its authors' "
        "names to ours; with --to, the other way. What has no counterpart is refused, and named.",
        "magneto convert openai-community/gpt2 gpt2-magneto",
    )
    made.add_argument(
        "source",
        help="a Hugging Face directory or a name on the hub; or weights of timm, torchscale or "
        "BEiT-3's authors: a .safetensors, .pt, .pth or .bin file",
    )
    made.add_argument("directory", type=Path, help="where to write; must not exist, or be empty")
    made.add_argument(
        "--to", metavar="FORMAT",
        help="write this instead of ours: gpt2, llama, mistral, bert, bart, "
        "marian, vit, beit, kosmos_2_text_model, timm_vit, timm_beit, timm_eva, "
        "beit3 or torchscale",
    )  # fmt: skip
    made.add_argument(
        "--config", type=Path, metavar="FILE",
        help="JSON with arguments by the library's names, if the weights lack them: of torchscale "
        '{"decoder_attention_heads": 12, "deepnorm": true}, of timm {"num_heads": 12}',
    )  # fmt: skip
    made.add_argument(
        "--tokenizer", type=Path, metavar="FILE",
        help="of BEiT-3 over images and texts: its authors' beit3.spm, to read texts with",
    )  # fmt: skip
    made.add_argument(
        "--labels", metavar="FILE",
        help="of BEiT-3 fine-tuned on questions: the answers in order, its authors' "
        "answer2label.txt or a run's answers.json",
    )  # fmt: skip
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given = parser().parse(words)
    from magneto.hf.export import whole_directory
    from magneto.hf.weights.conversion import WRITTEN
    from magneto.weights import check_finite

    hf.register()
    hide_bars()
    source = local(given.source)
    args = read_object(given.config) if given.config else {}
    with whole_directory(given.directory) as aside:
        model, values = read(given.source, source, args)
        check_finite(model.state_dict(), given.source)
        if given.tokenizer or given.labels:
            check_beit3(model, given.to)
        if given.labels:
            values |= hf.class_names(read_answers(given.labels))
        if given.tokenizer:
            values |= write_tokenizer(model, given.tokenizer, aside)
        wrote = write(model, given.to, aside, values)
        if source.is_dir() and given.to not in WRITTEN:
            copy_tokenizer(source, aside)
    made = {"directory": str(given.directory), "model": wrote}
    return answer(given, made, [f"{given.directory}: {wrote}"])


def hide_bars() -> None:
    """Keep transformers' progress bars off a stderr that is no terminal."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def export_parser() -> Parser:
    """Return the parser of `magneto export`."""
    made = Parser(
        "export",
        "Write a run's model for transformers: from_pretrained(DIR, trust_remote_code=True) of the "
        "Auto class that is named, and pipeline, load it where this package is installed.",
        "magneto export runs/first first-hf",
    ).with_run()
    made.add_argument("directory", type=Path, help="where to write")
    return made.with_json()


def export(words: Sequence[str]) -> int:
    """Run `magneto export`."""
    given = export_parser().parse(words)
    opened = load_run(given.run, given.weights, {"training.device": "cpu"})
    recipe, directory = opened.recipe, given.directory
    hide_bars()
    name = hf.export_model(recipe.task, opened.model, recipe.data, directory)
    how = "" if recipe.task not in TASKS else ".from_pretrained(DIR, trust_remote_code=True)"
    lines = [f"{directory}: load it with {name}{how}"]
    own = any(directory.glob("tokenizer.*")) and not (directory / "tokenizer_config.json").is_file()
    if recipe.task in TASKS and own:
        lines.append("transformers has no tokenizer of this kind: "
                     f'use magneto.data.tokenizer.load_tokenizer("{directory}")')  # fmt: skip
    value = {"directory": str(directory), "weights": str(opened.weights), "auto": name}
    return answer(given, value, lines)


def local(source: str) -> Path:
    """Return the path of a source; of a name on the hub, that of its small files.

    Raises:
        FileNotFoundError: If it is neither.
    """
    path = user_path(source)
    if path.exists():
        return path
    from magneto.hf.weights.conversion import SUFFIXES

    if path.suffix in SUFFIXES or source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise FileNotFoundError(f"nothing in {source}")
    return download(source, *TOKENIZERS, *COPIED, "config.json", "generation_config.json", "*.spm")


def download(source: str, *patterns: str) -> Path:
    """Return the directory that some files of a name on the hub come to.

    Raises:
        FileNotFoundError: If there is no such name.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=list(patterns)))
    except Exception as error:  # httpx's and the hub's own errors have no common base
        raise FileNotFoundError(f"no directory {source}, and no such model on the hub "
                                f"({type(error).__name__})") from error  # fmt: skip


def read(name: str, source: Path, args: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model of ours, and what else its configuration says of tokens and labels."""
    from magneto.hf.export import auto_class
    from magneto.hf.weights.conversion import (
        WEIGHTS,
        is_weight_directory,
        load_weight_file,
        load_with_config,
        read_config,
    )

    if source.is_file():
        return load_weight_file(source, args), {}
    if is_weight_directory(source):
        if not user_path(name).exists():
            download(name, WEIGHTS)
        return load_weight_file(source, args), {}
    if (source / "recipe.yaml").is_file():
        raise ConfigError([f"{source} is a run: magneto export writes it for transformers"])
    place = source if user_path(name).exists() else name
    config = read_config(place)
    if config.model_type.startswith("magneto"):
        import transformers

        auto = getattr(transformers, auto_class(config.architectures[0]))
        model = auto.from_pretrained(place, trust_remote_code=False).float().unwrap()
    else:
        model, config = load_with_config(place)
    values = {key: getattr(config, key, None) for key in ENDS}
    return model, {key: value for key, value in values.items() if value is not None}


def write(model: nn.Module, to: str | None, directory: Path, values: dict[str, Any]) -> str:
    """Write a model in a format, ours if None; return how it is loaded."""
    from magneto.hf.export import auto_class
    from magneto.hf.weights.conversion import WEIGHTS, WRITTEN, save_weight_file

    if to is not None and to in WRITTEN:
        save_weight_file(model, to, directory)
        return f"{WEIGHTS} by {to}'s names"
    if to is not None:
        theirs = hf.to_transformers(model, to, **values)
        theirs.save_pretrained(directory)
        return f"{type(theirs).__name__}.from_pretrained"
    wrapped = hf.wrap(model, **values)
    wrapped.save_pretrained(directory)
    if isinstance(model.config, VisionLanguageConfig):
        whole_images(model.config).save_pretrained(directory)
    return f"{auto_class(type(wrapped).__name__)}.from_pretrained(DIR, trust_remote_code=True)"


def whole_images(config: Any) -> hf.MagnetoImageProcessor:
    """Return what reads pictures for BEiT-3."""
    return hf.MagnetoImageProcessor(config.image_size, config.channels, NORMALISATION)


def check_beit3(model: nn.Module, to: str | None) -> None:
    """Raise ConfigError unless a BEiT-3 over images and texts is written as ours."""
    if not isinstance(model.config, VisionLanguageConfig) or to is not None:
        raise ConfigError(["--tokenizer and --labels are for BEiT-3 over images and texts, written "
                           "as ours"])  # fmt: skip


def write_tokenizer(model: Any, source: Path, directory: Path) -> dict[str, Any]:
    """Write BEiT-3's tokenizer and processor; return what the configuration says of its tokens."""
    from magneto.hf.export import images_and_texts, save_readers
    from magneto.hf.weights.torchscale import write_fairseq_order

    config, target = model.config, directory / "tokenizer.model"
    write_fairseq_order(user_path(source), target, config.vocab_size)
    assets = images_and_texts(config, load_tokenizer(target), whole_images(config))
    save_readers(assets, directory)
    return {("eos_token_id" if name == "end" else name): n for name, n in assets.values.items()}


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Bring a tokenizer along, as files that need not know the model's type."""
    for name in (*COPIED, "generation_config.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    if not any((source / name).is_file() for name in TOKENIZERS):
        return
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(directory)
