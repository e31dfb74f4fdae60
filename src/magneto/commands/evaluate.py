"""`magneto evaluate`: measure a run's model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from magneto.commands.arguments import Parser, print_json
from magneto.commands.loading import load_run
from magneto.training.distributed import pick_device
from magneto.training.progress import Reporter


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "evaluate",
        "Measure a run's model on its validation data, or on other data with its own tokenizer.",
        "magneto evaluate runs/first --weights best",
        recipe=True,
    )
    made.add_argument("run", type=Path, help="directory of a run")
    made.add_argument(
        "--weights", default="auto", help="best (default), final, averaged, last or a step"
    )
    made.add_argument("--limit", type=int, help="batches at most")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    if given.data:
        overrides |= other_data(given.run, given.data)
    report = Reporter()
    opened = load_run(given.run, given.weights, overrides, report)
    device = pick_device(opened.recipe.training.device)
    with torch.no_grad():
        metrics = opened.task.evaluate(opened.model, device, given.limit, report)
    report.finish()
    if given.json:
        print_json({"run": str(given.run), "weights": str(opened.weights), **metrics})
    else:
        print(f"{opened.weights}:")
        for name, value in metrics.items():
            print(f"  {name:<16}{value:.4f}")
    return 0


def other_data(run: Path, source: str) -> dict[str, str]:
    """Return overrides that evaluate on all of another source, with the run's own tokenizer."""
    changes = {"data.source": source}
    if (run / "tokenizer").is_dir():
        changes |= {"data.tokenizer": tokenizer_of(run), "data.validation_source": source}
    return changes


def tokenizer_of(run: Path) -> str:
    """Return the name or path by which a run's tokenizer is loaded."""
    folder = run / "tokenizer"
    if (folder / "tokenizer.bytes").exists():
        return "bytes"
    return str(next(p for p in sorted(folder.iterdir()) if p.suffix in (".json", ".model")))
