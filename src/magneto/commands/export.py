"""`magneto export`: write a run's model in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magneto import hf
from magneto.commands.arguments import Parser, print_json
from magneto.commands.loading import load_run
from magneto.commands.text import language_model_run
from magneto.training.progress import Reporter


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "export",
        "Write a language model's run for transformers: after `magneto.hf.register()`, "
        "AutoModelForCausalLM.from_pretrained(DIR) and pipeline load it.",
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
    opened = load_run(given.run, given.weights, overrides, Reporter(quiet=True))
    run = language_model_run(opened)
    hf.export(run.model, run.tokenizer, directory, run.length)
    if given.json:
        print_json({"directory": str(directory), "weights": str(opened.weights)})
    else:
        print(f"{directory}: load it with magneto.hf.register() and AutoModelForCausalLM")
    return 0
