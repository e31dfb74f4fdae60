"""What `magneto evaluate` does for most runs: the metrics of the validation data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

from magneto.analysis.scores import SCORES
from magneto.commands.shared import Parser, is_main_process, print_json
from magneto.config import ConfigError
from magneto.files import plain, write_json
from magneto.progress import ProgressBars
from magneto.runs import load_run, other_data

LETTERS = {*ascii_letters, *digits, *"-_."}


def add_options(made: Parser) -> None:
    """Add this evaluation's own options."""
    made.add_argument(
        "--keep", metavar="NAME", help="write the metrics to RUN/scores/NAME.json too (imagenet-a)"
    )


def evaluate(given: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run `magneto evaluate RUN`."""
    return measure(given, overrides, nothing_more)


def measure(
    given: argparse.Namespace, overrides: dict[str, Any], finish: Callable[[Any], None]
) -> int:
    """Measure a run, keep and print the metrics.

    Args:
        given: The command's options.
        overrides: Fields of the recipe.
        finish: Is called with the open run after it was measured.
    """
    if given.data:
        overrides = {**other_data(given.run, given.data), **overrides}
    if given.keep is not None and (not given.keep or not set(given.keep) <= LETTERS):
        raise ConfigError([f"--keep {given.keep!r}: letters, digits, '-', '_' and '.' alone"])
    report = ProgressBars(quiet=not is_main_process())
    opened = load_run(given.run, given.weights, overrides)
    metrics = opened.evaluate(given.limit, report)
    report.finish()
    if not is_main_process():
        return 0
    finish(opened)
    if given.keep:
        keep(given, overrides, opened.weights, metrics)
    if given.json:
        print_json({"run": str(given.run), "weights": str(opened.weights), **metrics})
    else:
        print(f"{opened.weights}:")
        width = max(16, *(len(name) + 1 for name in metrics))
        for name, value in metrics.items():
            print(f"  {name:<{width}}{value:.4f}")
    return 0


def nothing_more(opened: Any) -> None:
    """Do nothing with a run that was measured."""


def keep(
    given: argparse.Namespace, overrides: dict[str, Any], weights: Path, metrics: dict[str, float]
) -> None:
    """Write what was measured, and on what, into the run."""
    folder = given.run / SCORES
    folder.mkdir(exist_ok=True)
    what = {"weights": weights.name, "limit": given.limit, "overrides": overrides}
    write_json(folder / f"{given.keep}.json", plain({"metrics": metrics, **what}))
