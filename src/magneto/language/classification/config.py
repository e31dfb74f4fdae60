"""The `model` and `data` sections of recipes of labelled texts. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.config import ConfigError, nearest
from magneto.data.sources import check_builtin, parse_source
from magneto.data.tokenizer import SPECIAL
from magneto.language.classification.glue import GLUE
from magneto.language.config import TextEncoderConfig

METRICS = ("accuracy", "f1", "matthews", "pearson", "spearman")
NAMES = ("word-order",)


@dataclass(frozen=True, kw_only=True)
class TextClassifierConfig(TextEncoderConfig):
    """A text encoder with a head that reads its first feature.

    Attributes:
        classes: Of the answer, 1 for a number; None for as many as the data has.
        head_dropout: Before and between the head's two layers (0.1 in BERT and in the paper).
        pretrained: Directory of a run whose encoder and tokenizer to begin with, of the same shape
            as this; "{placement}" in it stands for the placement's name. None begins from scratch.
    """

    classes: int | None = None
    head_dropout: float = 0.1
    pretrained: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None and self.classes < 1:
            raise ValueError(f"classes must be 1 or more, not {self.classes}")
        if not 0 <= self.head_dropout < 1:
            raise ValueError(f"head_dropout must be in [0, 1), not {self.head_dropout}")


@dataclass(frozen=True, kw_only=True)
class ClassificationDataConfig:
    """Labelled texts: the `data` section of a recipe.

    Attributes:
        source: PATH (a .tsv, .csv, .jsonl or .json file, maybe packed, or a folder with train and
            dev files), hf:NAME[:CONFIG[:SPLIT]] or builtin:word-order.
        glue: One of GLUE's tasks, which sets columns, metric and kind of label; "none" for your
            own data.
        text_column: Column that has the text; None finds it by its usual names.
        pair_column: That has the text to compare it with; None for single texts.
        label_column: That has the label; None finds it.
        label_until: Only what stands before this mark is the label: ":" makes LOC of LOC:city.
        target: "class", or "number" for regression.
        labels: The classes in order; None for the training set's (a file's are sorted).
        metric: What checkpoints and comparisons go by; "auto" is accuracy, Pearson correlation for
            numbers, or GLUE's choice.
        tokenizer: "auto" (that of `model.pretrained`, or else "bpe"), "bpe" (byte-level, trained on
            the training texts), "bytes", or the path of a tokenizer.
        vocab_size: Of a "bpe" tokenizer.
        max_length: Tokens of an input at most; of a pair, the longer text is cut first.
        separator: Whether one or two `</s>` stand between the texts of a pair.
        validation_fraction: Share of rows, chosen by the hash of their text, that is held out where
            the source has no validation set.
        validation_source: Another source to validate on.
    """

    source: str = "builtin:word-order"
    glue: str = "none"
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    label_until: str | None = None
    target: Literal["class", "number"] = "class"
    labels: tuple[str, ...] | None = None
    metric: str = "auto"
    tokenizer: str = "auto"
    vocab_size: int = 8192
    max_length: int = 512
    separator: Literal["single", "double"] = "double"
    validation_fraction: float = 0.1
    validation_source: str | None = None

    def __post_init__(self) -> None:
        wrong = []
        for name, value, known in (
            ("glue", self.glue, ("none", *GLUE)),
            ("metric", self.metric, ("auto", *METRICS)),
        ):
            if value not in known:
                hint = nearest(value, known).replace(";", ",")
                wrong.append(f"{name} must be one of {', '.join(known)}, not {value!r}{hint}")
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.max_length < 8:
            wrong.append(f"max_length must be 8 or more, not {self.max_length}")
        if self.vocab_size < 256 + len(SPECIAL):
            wrong.append(f"vocab_size must be {256 + len(SPECIAL)} or more, not {self.vocab_size}")
        if self.labels is not None and len(set(self.labels)) < max(2, len(self.labels)):
            wrong.append(f"labels must be two or more different ones, not {list(self.labels)}")
        of_numbers = self.metric in ("pearson", "spearman")
        if not wrong and self.metric != "auto" and self.number != of_numbers:
            wrong.append(f"metric {self.metric!r} is not for a {self.kind} as the target")
        if self.source.startswith("builtin:"):
            check_builtin(parse_source(self.source), NAMES, "labelled text")
        if wrong:
            raise ConfigError(wrong)

    @property
    def number(self) -> bool:
        """Whether the label is a number."""
        return GLUE[self.glue].number if self.glue in GLUE else self.target == "number"

    @property
    def kind(self) -> str:
        """What a label is, in a word."""
        return "number" if self.number else "class"

    @property
    def primary_metric(self) -> str:
        """The metric that checkpoints and comparisons go by."""
        if self.metric != "auto":
            return self.metric
        if self.glue in GLUE:
            return GLUE[self.glue].metric
        return "pearson" if self.number else "accuracy"

    @property
    def paired(self) -> bool:
        """Whether there are two texts to a label."""
        return bool(GLUE[self.glue].pair) if self.glue in GLUE else bool(self.pair_column)
