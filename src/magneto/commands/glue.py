"""`magneto glue`: the paper's GLUE table from comparisons of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magneto.commands.arguments import Parser, print_json
from magneto.commands.columns import aligned, markdown
from magneto.commands.glue_table import baseline_scores, read_folders, table


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "glue",
        "Set comparisons of GLUE's tasks side by side: of each grid the point with the best mean\n"
        "over seeds on the validation set, times 100, with 95 % intervals over seeds.",
        "magneto glue runs/compare-cola runs/compare-mrpc --baselines",
    )
    made.add_argument("folders", nargs="+", type=Path, help="folders of `magneto compare`")
    made.add_argument(
        "--baselines", action="store_true", help="rows for the commonest class and a bag of words"
    )
    made.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given = parser().parse(words)
    scores = read_folders(given.folders)
    if given.baselines:
        for folder in given.folders:
            scores += baseline_scores(folder)
    lines = table(scores)
    if given.json:
        print_json({
            "scores": [
                {"row": s.row, "task": s.column[0], "metric": s.column[1], "mean": s.mean,
                 "interval": s.interval, "seeds": s.seeds, "point": s.point}
                for s in scores
            ],
            "table": lines,
        })  # fmt: skip
    else:
        print(markdown(lines) if given.markdown else aligned(lines))
    return 0
