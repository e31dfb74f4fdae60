"""`magneto vision`: the paper's table of images from comparisons and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magneto.commands.arguments import Parser, print_json
from magneto.commands.columns import aligned, markdown
from magneto.commands.vision_runs import TASKS, Tasks, Trained, read_folders, words
from magneto.commands.vision_table import (
    Score,
    best_scores,
    matched_scores,
    missing_lines,
    point_lines,
    table,
)


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "vision",
        "Set placements side by side on images: accuracy on a run's own validation images and\n"
        "on the sets that `magneto evaluate RUN --keep NAME` measured, mean IoU of segmentation;\n"
        "times 100, with 95 % intervals over seeds, at each row's best rate and at shared rates.",
        "magneto vision runs/compare-imagenet runs/compare-ade20k",
    )
    return with_folders(made)


def with_folders(made: Parser) -> Parser:
    """Add what a table is made of, and how it is printed."""
    made.add_argument("folders", nargs="+", type=Path, help="folders of `magneto compare`, or runs")
    made.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    return made.with_json()


def main(words_given: Sequence[str]) -> int:
    """Run the command."""
    return show(parser().parse(words_given), TASKS)


def show(given: Any, tasks: Tasks, decimals: int = 1) -> int:
    """Print the tables of runs.

    Args:
        given: The command's options.
        tasks: Of the table.
        decimals: Of its scores, as far as their intervals justify them.
    """
    runs = read_folders(given.folders, tasks)
    rows = list(dict.fromkeys(run.row for run in runs))
    best, matched = best_scores(runs), matched_scores(runs)
    if given.json:
        print_json({
            "best": [plainly(score) for score in best],
            "matched": [plainly(score) for scores in matched.values() for score in scores],
            "without_score": [plainly_missing(run) for run in runs if run.score is None],
        })  # fmt: skip
        return 0
    tables = [table("each row at its best", best, rows, decimals)]
    tables += [
        table(f"all at {words(point)}", found, rows, decimals) for point, found in matched.items()
    ]
    first, *others = [markdown(t) if given.markdown else aligned(t) for t in tables]
    said = [*point_lines(best, {run.own for run in runs}), *missing_lines(runs)]
    if said and given.markdown:
        first += "\n\n" + "\n".join(f"- {line}" for line in said)
    elif said:
        first += "\n" + "\n".join(said)
    print("\n\n".join([first, *others]))
    return 0


def plainly(score: Score) -> dict:
    """Return a score as plain values."""
    return {
        "row": score.row, "images": score.column, "mean": score.mean, "interval": score.interval,
        "seeds": score.seeds, "point": dict(score.point),
    }  # fmt: skip


def plainly_missing(run: Trained) -> dict:
    """Return a run without a score as plain values."""
    return {
        "row": run.row, "images": run.own, "seed": run.seed, "point": dict(run.point),
        "why": run.why,
    }  # fmt: skip
