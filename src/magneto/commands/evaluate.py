"""`magneto evaluate`: measure a run's model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from magneto.commands.arguments import Parser, print_json
from magneto.commands.in_context import add_options, evaluate_in_context
from magneto.commands.translation_scores import add_translation_options, evaluate_translation
from magneto.config import ConfigError
from magneto.progress import ProgressBars
from magneto.recipe import open_run, task_class
from magneto.runs import load_run
from magneto.training.distributed import pick_device
from magneto.translation.task import Translation


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "evaluate",
        "Measure a run's model on its validation data, on other data with its own tokenizer, or, a "
        "language model, by questions with options (--tasks; --data is then their folder or file).",
        "magneto evaluate runs/first --weights best\n"
        "  magneto evaluate runs/first --tasks hellaswag --num-fewshot 0,1,4 --data items/",
        recipe=True,
    )
    made.add_argument("run", type=Path, help="directory of a run")
    made.add_argument(
        "--weights", default="auto", help="best (default), final, averaged, last or a step"
    )
    made.add_argument("--limit", type=int, help="batches, questions, or sentences per direction")
    add_options(made)
    add_translation_options(made)
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    if given.limit is not None and given.limit < 1:
        raise ConfigError([f"--limit {given.limit}: at least 1"])
    if given.tasks is not None:
        return evaluate_in_context(given, overrides)
    if given.data:
        overrides |= other_data(given.run, given.data)
    if issubclass(task_class(open_run(given.run, overrides).task), Translation):
        return evaluate_translation(given, overrides)
    report = ProgressBars()
    opened = load_run(given.run, given.weights, overrides)
    opened.task.prepare(report)
    device = pick_device(opened.recipe.training.device)
    with torch.no_grad():
        metrics = opened.task.evaluate(opened.model, device, given.limit, report)
    report.finish()
    if given.json:
        print_json({"run": str(given.run), "weights": str(opened.weights), **metrics})
    else:
        print(f"{opened.weights}:")
        width = max(16, *(len(name) + 1 for name in metrics))
        for name, value in metrics.items():
            print(f"  {name:<{width}}{value:.4f}")
    return 0


def other_data(run: Path, source: str) -> dict[str, str]:
    """Return overrides that evaluate on all of another source, with the run's own tokenizer."""
    changes = {"data.source": source}
    if (run / "tokenizer").is_dir():
        changes |= {"data.tokenizer": str(run / "tokenizer"), "data.validation_source": source}
    return changes
