"""`magneto export`: write a run's model in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magneto.commands.shared import Parser, print_json
from magneto.runs import load_run


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
    from magneto.hf import export_model

    opened = load_run(given.run, given.weights, {"training.device": "cpu"})
    recipe = opened.recipe
    name = export_model(recipe.task, opened.model, recipe.data, directory)
    if given.json:
        print_json({"directory": str(directory), "weights": str(opened.weights), "auto": name})
        return 0
    print(f"{directory}: load it with {name}.from_pretrained(DIR, trust_remote_code=True)")
    if any(directory.glob("tokenizer.*")) and not (directory / "tokenizer_config.json").is_file():
        print(
            "transformers has no tokenizer of this kind: "
            f'use magneto.data.tokenizer.load_tokenizer("{directory}")'
        )
    return 0
