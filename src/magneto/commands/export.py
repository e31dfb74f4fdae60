"""`magneto export`: write a run's model in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magneto import hf
from magneto.commands.arguments import Parser, print_json
from magneto.config import ConfigError
from magneto.language.classification.model import TextClassifier
from magneto.language.masked_language import MaskedLanguageModel
from magneto.language.model import LanguageModel
from magneto.runs import OpenRun, load_run
from magneto.translation.model import TranslationModel
from magneto.vision.classifier import ImageClassifier


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "export",
        "Write a run's model for transformers: from_pretrained(DIR, trust_remote_code=True) of the "
        "Auto class that is named, and pipeline, load it where this package is installed.",
        "magneto export runs/first first-hf",
    )
    made.add_argument("run", type=Path, help="directory of a run")
    made.add_argument("directory", nargs="?", type=Path, help="where to write")
    made.add_argument("--out", type=Path, metavar="DIR", help="the same")
    made.add_argument("--weights", default="auto", help="best (default), final, averaged, last")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    made = parser()
    given = made.parse(words)
    directory = given.out or given.directory
    if directory is None:
        made.error("say where to write: magneto export RUN DIR")
    overrides = {"training.device": "cpu"}
    opened = load_run(given.run, given.weights, overrides)
    name = write(opened, directory)
    if given.json:
        print_json({"directory": str(directory), "weights": str(opened.weights), "auto": name})
    else:
        print(f"{directory}: load it with {name}.from_pretrained(DIR, trust_remote_code=True)")
        reads_text = not isinstance(opened.model, ImageClassifier)
        if reads_text and not (directory / "tokenizer_config.json").is_file():
            print(
                "transformers has no tokenizer of this kind: "
                f'use magneto.data.tokenizer.load_tokenizer("{directory}")'
            )
    return 0


def write(opened: OpenRun, directory: Path) -> str:
    """Export a run; return the name of the Auto class that loads it.

    Raises:
        ConfigError: If transformers has no place for what the run trains.
    """
    task: Any = opened.task
    model, length = opened.model, getattr(opened.recipe.data, "max_length", 0)
    if isinstance(model, LanguageModel):
        return hf.export(model, task.tokenizer, directory, length)
    if isinstance(model, MaskedLanguageModel):
        return hf.export(model, task.tokenizer, directory, length, hf.MASKED)
    if isinstance(model, TextClassifier):
        return hf.export(model, task.tokenizer, directory, length, classifier_input(task))
    if isinstance(model, TranslationModel):
        return hf.export(model, task.vocabulary, directory, task.data_config.max_length)
    if isinstance(model, ImageClassifier):
        return hf.export_images(model, directory)
    known = "only models of text and of images are exported"
    raise ConfigError([f"the run's task is {opened.recipe.task}: {known}"])


def classifier_input(task: Any) -> hf.EncoderInput:
    """Return how a text classification puts its inputs together, and its classes."""
    between = "{end} {end}" if task.data_config.separator == "double" else "{end}"
    return hf.EncoderInput(
        single="{begin} $A {end}",
        pair=f"{{begin}} $A {between} $B:1 {{end}}:1",
        types=task.model_config.token_types,
        labels=task.labels,
        number="number" if task.data_config.number else "none",
    )
