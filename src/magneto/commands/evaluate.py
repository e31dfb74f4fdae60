"""`magneto evaluate`: measure a run's model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from magneto.commands import (
    answer_scores,
    in_context,
    recognition_scores,
    translation_scores,
    validation_scores,
)
from magneto.commands.shared import (
    Parser,
    is_main_process,
    is_standard_input,
    standard_input_as_file,
)
from magneto.config import ConfigError
from magneto.recipe import open_run
from magneto.runs import run_task

EVALUATIONS = {
    "validation": "magneto.commands.validation_scores",
    "answers": "magneto.commands.answer_scores",
    "translation": "magneto.commands.translation_scores",
    "recognition": "magneto.commands.recognition_scores",
    "questions": "magneto.commands.in_context",
    "features": "magneto.commands.feature_scores",
}
"""Ways to measure a run, each a module with `evaluate(given, overrides)`.

A task's runs are measured by the one that its `evaluation` names; by questions if --tasks are
given, and by their frozen features with --features, if its verbs have these.
"""
HEEDED = {
    "keep": ("validation", "answers"),
    "write": ("translation", "recognition"),
    "directions": ("translation",),
    "splits": ("recognition",),
    "normaliser": ("recognition",),
    "include": ("questions",),
}
"""Options that some ways to measure alone take; in others they would be passed over."""
ASKED = {"questions": "evaluate --tasks", "features": "evaluate --features"}


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "evaluate",
        "Measure a run's model on its validation data, on other data with its own tokenizer, or, a "
        "language model, by questions with options (--tasks; --data is then their folder or file).",
        "magneto evaluate runs/first --weights best\n"
        "  magneto evaluate runs/base --data imagenet-a/ --data.candidates present "
        "--keep imagenet-a\n"
        "  magneto evaluate runs/vqa --data.validation_split test-dev2015 --answers answers.json\n"
        "  torchrun --nproc-per-node 8 -m magneto evaluate runs/base\n"
        "  magneto evaluate runs/first --tasks hellaswag --num-fewshot 0,1,4 --data items/",
        recipe=True,
    )
    made.add_argument("run", type=Path, help="directory of a run")
    made.add_argument(
        "--weights", default="auto", help="best (default), final, averaged, last or a step"
    )
    made.add_argument("--limit", type=int, help="batches, questions, or sentences per direction")
    made.add_argument(
        "--features",
        action="store_true",
        help="of images: a linear probe and k nearest neighbours on every layer's frozen features",
    )
    validation_scores.add_options(made)
    answer_scores.add_options(made)
    in_context.add_options(made)
    translation_scores.add_options(made)
    recognition_scores.add_options(made)
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    if given.limit is not None and given.limit < 1:
        raise ConfigError([f"--limit {given.limit}: at least 1"])
    asked = {"questions": given.tasks is not None, "features": given.features}
    kind = next((name for name, wanted in asked.items() if wanted), None)
    task = run_task(given.run, overrides, ASKED[kind] if kind else None)
    measured = kind or task.evaluation
    if given.answers is not None and measured != "answers":
        answer_scores.refuse(given.run, measured)
    refuse_unheeded(given, measured)
    if kind and not is_main_process():
        return 0  # of these, one process does all
    with ExitStack() as stack:
        if given.data and is_standard_input(given.data):
            if several_processes() and not kind:
                raise ConfigError(["--data -: several processes can't share standard input; name "
                                   "a file"])  # fmt: skip
            given.data = str(stack.enter_context(standard_input_as_file()))
        if several_processes() and not kind:
            stack.enter_context(joined_processes(given.run, overrides))
        return import_module(EVALUATIONS[measured]).evaluate(given, overrides)


def several_processes() -> bool:
    """Return whether torchrun started this process and others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined_processes(run: Path, overrides: dict[str, str]) -> Iterator[None]:
    """Let the processes of torchrun share the batches."""
    from magneto.training.distributed import join_world

    training = open_run(run, overrides).training
    with join_world(replace(training, distributed="ddp")):  # each has a whole model
        yield


def refuse_unheeded(given: argparse.Namespace, measured: str) -> None:
    """Raise ConfigError if an option is given that this way to measure would pass over.

    Args:
        given: On the command line.
        measured: A key of `EVALUATIONS`.
    """
    for option, ways in HEEDED.items():
        if getattr(given, option) is not None and measured not in ways:
            raise ConfigError([f"--{option} has no effect on {given.run}, a run of "
                               f"{open_run(given.run).task} measured by {measured}: leave it out; "
                               "--json prints the metrics"])  # fmt: skip
