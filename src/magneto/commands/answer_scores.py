"""What `magneto evaluate` does for runs that answer questions: metrics, and a file of answers."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

from magneto.commands import validation_scores
from magneto.commands.shared import Parser
from magneto.config import ConfigError
from magneto.files import write_json
from magneto.recipe import open_run


def add_options(made: Parser) -> None:
    """Add this evaluation's own options."""
    made.add_argument(
        "--answers", type=Path, metavar="FILE",
        help="of a run that answers questions: write its answers there, as VQA's leaderboard "
        "takes them",
    )  # fmt: skip


def evaluate(given: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run `magneto evaluate` for a run that answers questions.

    Raises:
        ConfigError: If the answers of a part of the questions should be written, or where no file
            can be.
    """
    if given.answers is None:
        return validation_scores.evaluate(given, overrides)
    if given.limit is not None:
        raise ConfigError(["--answers: the leaderboard takes the answers to all questions; leave "
                           "--limit out"])  # fmt: skip
    check_place(given.answers)
    return validation_scores.measure(given, overrides, partial(write_answers, given.answers))


def refuse(run: Path, measured: str) -> None:
    """Raise ConfigError: a run has no answers that could be written.

    Args:
        run: That is asked for them.
        measured: How it is: a key of the command's `EVALUATIONS`.
    """
    instead = "--keep NAME writes its metrics into it" if measured == "validation" else (
        "--json prints its metrics")  # fmt: skip
    raise ConfigError([f"--answers: {run} is a run of {open_run(run).task}, which has no answers "
                       "to write, as one of visual-question-answering has; "
                       f"{instead}"])  # fmt: skip


def check_place(path: Path) -> None:
    """Raise ConfigError if no file can be written at a path; nothing has been measured then."""
    if path.is_dir():
        raise ConfigError([f"--answers {path}: it is a folder; name the file, "
                           f"{path / 'answers.json'}"])  # fmt: skip
    above = next(place for place in path.resolve().parents if place.exists())
    if not above.is_dir():
        raise ConfigError([f"--answers {path}: {above} is a file, not a folder"])
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError([f"--answers {path}: nothing may be written in {above}"])


def write_answers(path: Path, opened: Any) -> None:
    """Write the answers of the last evaluation: a JSON list, by the questions' ids.

    Args:
        path: Of the file.
        opened: A run that was measured.
    """
    rows = [{"question_id": number, "answer": answer} for number, answer in opened.task.answered]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, rows)
