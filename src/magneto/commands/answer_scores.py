"""What `magneto evaluate` does for runs that answer questions: metrics, and a file of answers."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from magneto.commands import validation_scores
from magneto.commands.arguments import Parser
from magneto.config import ConfigError
from magneto.files import write_json


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
        ConfigError: If the answers of a part of the questions should be written.
    """
    if given.answers is None:
        return validation_scores.evaluate(given, overrides)
    if given.limit is not None:
        raise ConfigError(["--answers: the leaderboard takes the answers to all questions; leave "
                           "--limit out"])  # fmt: skip
    return validation_scores.measure(given, overrides, partial(write_answers, given.answers))


def write_answers(path: Path, opened: Any) -> None:
    """Write the answers of the last evaluation: a JSON list, by the questions' ids.

    Args:
        path: Of the file.
        opened: A run that was measured.
    """
    rows = [{"question_id": number, "answer": answer} for number, answer in opened.task.answered]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, rows)
