"""GLUE's tasks (arXiv 1804.07461): their columns, their files, and the number that counts.

The numbers are those of the paper's table (section 4.2): accuracy, Matthews correlation for CoLA,
and for STS-B Pearson correlation. RTE is here because it is small; the paper's average is without.
"""

from __future__ import annotations

from dataclasses import dataclass

from magneto.data.splits import SPLIT_NAMES


@dataclass(frozen=True)
class GlueTask:
    """One task. Columns are those of GLUE's files, of the originals, and of the hub's.

    Attributes:
        text: Names of the column, best first.
        pair: Of the second text; empty if there is none.
        label: Of the label.
        places: Of text, pair (if there is one) and label in files without a header, from 0; empty
            if there are no such files.
        metric: The number of the paper's table.
        number: Whether the label is a number and not a class.
    """

    text: tuple[str, ...]
    pair: tuple[str, ...]
    label: tuple[str, ...] = ("label", "gold_label")
    places: tuple[int, ...] = ()
    metric: str = "accuracy"
    number: bool = False


GLUE = {
    "mnli": GlueTask(
        ("premise", "sentence1"), ("hypothesis", "sentence2"), ("gold_label", "label")
    ),
    "qnli": GlueTask(("question",), ("sentence",)),
    "qqp": GlueTask(("question1",), ("question2",), ("is_duplicate", "label")),
    "sst2": GlueTask(("sentence",), (), places=(0, 1)),
    "cola": GlueTask(("sentence",), (), places=(3, 1), metric="matthews"),
    "mrpc": GlueTask(("#1 String", "sentence1"), ("#2 String", "sentence2"), ("Quality", "label")),
    "stsb": GlueTask(
        ("sentence1",), ("sentence2",), ("score", "label"), (1, 2, 0), "pearson", number=True
    ),
    "rte": GlueTask(("sentence1", "text", "premise"), ("sentence2", "hypothesis")),
}
# Names of files and of the hub's splits, best first. MNLI has two validation sets.
TRAIN = {
    "train": (
        *SPLIT_NAMES["train"],
        *("in_domain_train", "msr_paraphrase_train", "multinli_1.0_train"),
    )
}
VALIDATION = {
    "validation": (
        *("dev", "dev_matched", *SPLIT_NAMES["validation"], "validation_matched", "in_domain_dev"),
        *("multinli_1.0_dev_matched", "msr_paraphrase_test"),
    ),
    "mismatched": ("dev_mismatched", "validation_mismatched", "multinli_1.0_dev_mismatched"),
}
