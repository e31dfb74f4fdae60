"""GLUE's tasks (arXiv 1804.07461): their columns, their files, and the number that counts.

The numbers are those of the paper's table (section 4.2): accuracy, Matthews correlation for CoLA,
and for STS-B Pearson correlation. RTE is here because it is small; the paper's average is without.
"""

from __future__ import annotations

from dataclasses import dataclass

from magneto.data.splits import SPLIT_NAMES


@dataclass(frozen=True)
class Columns:
    """Where a row has its text, the text to compare it with, and its label.

    Attributes:
        text: Names of the column, best first.
        pair: Of the second text; empty if there is none.
        label: Of the label.
        places: Numbers of the same three in files without a header (-1: no pair); None if such a
            file can't be read.
    """

    text: tuple[str, ...]
    pair: tuple[str, ...]
    label: tuple[str, ...]
    places: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
        columns: Of GLUE's files, of the originals, and of the hub's `nyu-mll/glue`.
        metric: The number of the paper's table.
        number: Whether the label is a number and not a class.
    """

    columns: Columns
    metric: str = "accuracy"
    number: bool = False


SENTENCES = ("sentence1", "text", "premise"), ("sentence2", "hypothesis")
LABELS = ("label", "gold_label")

GLUE = {
    "mnli": GlueTask(
        Columns(("premise", "sentence1"), ("hypothesis", "sentence2"), ("gold_label", "label"))
    ),
    "qnli": GlueTask(Columns(("question",), ("sentence",), LABELS)),
    "qqp": GlueTask(Columns(("question1",), ("question2",), ("is_duplicate", "label"))),
    "sst2": GlueTask(Columns(("sentence",), (), LABELS, (0, -1, 1))),
    "cola": GlueTask(Columns(("sentence",), (), LABELS, (3, -1, 1)), metric="matthews"),
    "mrpc": GlueTask(
        Columns(("#1 String", "sentence1"), ("#2 String", "sentence2"), ("Quality", "label"))
    ),
    "stsb": GlueTask(
        Columns(("sentence1",), ("sentence2",), ("score", "label"), (1, 2, 0)),
        metric="pearson",
        number=True,
    ),
    "rte": GlueTask(Columns(*SENTENCES, LABELS)),
}
# Beginnings of file names and names of the hub's splits, best first.
TRAIN = ("train", "in_domain_train", "msr_paraphrase_train", "multinli_1.0_train")
VALIDATION = (
    *("dev", "dev_matched", *SPLIT_NAMES["validation"], "validation_matched", "in_domain_dev"),
    *("multinli_1.0_dev_matched", "msr_paraphrase_test"),
)
MISMATCHED = ("dev_mismatched", "validation_mismatched", "multinli_1.0_dev_mismatched")
