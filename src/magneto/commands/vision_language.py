"""`magneto vision-language`: the paper's table of VQA and NLVR2 from comparisons and runs."""

from __future__ import annotations

from collections.abc import Sequence

from magneto.commands import vision
from magneto.commands.arguments import Parser
from magneto.commands.vision_runs import VISION_LANGUAGE_TASKS


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "vision-language",
        "Set placements side by side on questions and statements about images: accuracy on a\n"
        "run's own validation data, on what `magneto evaluate RUN --keep NAME` measured\n"
        "(NLVR2's test-P), and what VQA's leaderboard gave, saved in RUN/scores/; accuracies are\n"
        "times 100, with 95 % intervals over seeds, at each row's best rate and at shared rates.",
        "magneto vision-language runs/compare-vqa-24l runs/compare-nlvr2-24l",
    )
    return vision.with_folders(made)


def main(words: Sequence[str]) -> int:
    """Run the command."""
    return vision.show(parser().parse(words), VISION_LANGUAGE_TASKS, decimals=2)
