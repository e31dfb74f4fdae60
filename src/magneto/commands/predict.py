"""`magneto predict`: what a run's model says of images, of a question about them, or of texts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from magneto.commands.arguments import Parser
from magneto.recipe import open_run

PREDICTIONS = {
    "images": "magneto.commands.predict_images",
    "texts": "magneto.commands.predict_texts",
}
"""Modules with `predict(given, overrides)`, by what a task's `prediction` says."""


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "predict",
        "Say what images show: labels with probabilities, or, by a segmentation run, the classes\n"
        "of their pixels, with a picture of each and a legend. A run that answers questions takes\n"
        "one after the images, in quotes.\n\n"
        "By a run that classifies texts: a line per text, its label and the text. Texts are lines\n"
        "of .txt files or of standard input, rows of .csv, .tsv and .jsonl files, or words in\n"
        "quotes; a pair of texts in a line has a tab between them.",
        "magneto predict runs/first cat.jpg dog.png photos/ --top 3\n"
        '  magneto predict runs/vqa cat.jpg "what is the cat doing?"\n'
        "  magneto predict runs/reviews new.csv --data.text_column review --probabilities\n"
        "  magneto predict runs/reviews < lines.txt > labels.tsv",
        recipe=True,
    )
    made.add_argument("run", type=Path, help="directory of a run")
    made.add_argument(
        "inputs", nargs="*",
        help="images or folders of them, the last word maybe a question; or texts and their files; "
        "- for standard input",
    )  # fmt: skip
    made.add_argument("--top", type=int, default=5, help="labels shown of each image (5)")
    made.add_argument(
        "--probabilities", action="store_true", help="show those of all classes, of each text"
    )
    made.add_argument("--weights", default="auto", help="best (default), final, averaged, last")
    made.add_argument(
        "--out", type=Path, default=Path("predictions"), metavar="DIR",
        help="where pictures are written, if there are any (predictions/)",
    )  # fmt: skip
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command.

    Raises:
        FileNotFoundError: If there is no such run, or nothing at a path.
        ConfigError: If the run's task predicts nothing.
        ValueError: If nothing of what is named can be read.
    """
    made = parser()
    given, overrides = made.parse_with_overrides(words)
    if given.top < 1:
        made.error(f"--top {given.top}: at least 1")
    open_run(given.run, overrides)  # what is wrong with it is said before torch is imported
    from magneto.runs import run_task

    kind = run_task(given.run, overrides, "predict").prediction
    return import_module(PREDICTIONS[kind]).predict(given, overrides)
