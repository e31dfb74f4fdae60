"""The `model` and `data` sections of recipes of text. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from magneto.config import LARGEST
from magneto.data.sources import SPLIT_NAMES, wrong_builtin
from magneto.data.tokenizer import END, MOST_TOKENS, SPECIAL
from magneto.fields import Dropout, Free, NonNegativeInt, PositiveInt, Share, configuration, rule
from magneto.nn.config import TransformerConfig

Vocabulary = Annotated[int, Interval(ge=1, le=MOST_TOKENS)]


@configuration
class LanguageModelConfig(TransformerConfig):
    """A decoder-only language model."""

    vocab_size: PositiveInt | None = None
    """Tokens; None for as many as the tokenizer has."""
    tie_embeddings: bool = True
    """Whether the output matrix is the embedding table."""
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    """"sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance, as the paper's theory
    has its input and as fairseq does."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Rows of logits that exist at once in the loss; 0 for all."""


@configuration
class TextEncoderConfig(TransformerConfig):
    """An encoder over tokens."""

    vocab_size: PositiveInt | None = None
    """Tokens; None for as many as the tokenizer has."""
    token_types: NonNegativeInt = 0
    """Kinds of segment with a learned vector each; 0 for none. BERT has 2."""
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    """"sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance."""


@configuration
class MaskedLanguageModelConfig(TextEncoderConfig):
    """A text encoder with a head that guesses tokens."""

    tie_embeddings: bool = True
    """Whether the output matrix is the embedding table."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Rows of logits that exist at once in the loss; 0 for all."""


@configuration
class TextDataConfig:
    """Text for language modelling: the `data` section of a recipe."""

    # Reserved in a "bpe" tokenizer.
    special: ClassVar[tuple[str, ...]] = (END,)

    source: str = "builtin:docstrings"
    """PATH (file or folder of .txt, .jsonl, .json, .csv, .tsv, .parquet or .tar, also packed),
    hf:NAME[:CONFIG[:SPLIT]] or builtin:docstrings."""
    text_field: str = "text"
    """Name of the text in records: a key, or a column of a table."""
    document: Literal["paragraphs", "line"] = "paragraphs"
    """What a document of a .txt file is: some "paragraphs", which end at a blank line, or each
    "line", for text with one sentence per line."""
    tokenizer: str = "bpe"
    """"bpe" (byte-level, trained on the source on first use), "bytes", or the path of a
    tokenizer.json or a SentencePiece .model."""
    vocab_size: Vocabulary = 8192
    """Of a "bpe" tokenizer."""
    max_length: PositiveInt = 512
    """Tokens of a sequence."""
    validation_fraction: Share = 0.05
    """Share of documents, chosen by their hash, that is held out where the source has no validation
    split; one at least."""
    validation_source: str | None = None
    """Another source to validate on; then nothing is held out."""
    mask_documents: bool = False
    """Whether attention stops at document boundaries inside a sequence."""
    streaming: bool = False
    """Read and tokenise while training, for what fits no disk; nothing is cached."""

    @rule
    def _vocabulary_has_all_bytes(self) -> Iterator[str]:
        least = 256 + len(self.special)
        if self.vocab_size < least:
            yield (f"vocab_size must be {least} or more (256 bytes and {', '.join(self.special)}), "
                   f"not {self.vocab_size}")  # fmt: skip


@configuration
class MaskedTextDataConfig(TextDataConfig):
    """Text for masked language modelling: the `data` section of a recipe."""

    special: ClassVar[tuple[str, ...]] = SPECIAL

    mask_ratio: Share = 0.15
    """Share of a sequence's tokens to guess (BERT's and the paper's 15 %)."""
    masking: Literal["token", "word", "span"] = "token"
    """What is chosen: single tokens, whole words (all their tokens), or spans."""
    corruption: Literal["mask", "bert"] = "mask"
    """What stands in a chosen token's place: always the mask ("mask", as in the authors' code), or
    by BERT's rule 80 % mask, 10 % another token, 10 % itself ("bert")."""

    @rule
    def _a_word_follows_the_first_token(self) -> Iterator[str]:
        if self.max_length == 1:
            yield "max_length must be 2 or more: the first token only begins the sequence"


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


METRICS = ("accuracy", "f1", "matthews", "pearson", "spearman")
Metric = Literal["auto", "accuracy", "f1", "matthews", "pearson", "spearman"]
Glue = Literal["none", "mnli", "qnli", "qqp", "sst2", "cola", "mrpc", "stsb", "rte"]
NAMES = ("word-order",)


@configuration
class TextClassifierConfig(TextEncoderConfig):
    """A text encoder with a head that reads its first feature, or the mean of all."""

    classes: PositiveInt | None = None
    """Of the answer, 1 for a number; None for as many as the data has."""
    head_dropout: Dropout = 0.1
    """Before and between the head's two layers (0.1 in BERT and in the paper)."""
    pooling: Literal["first", "mean"] = "first"
    """What the head reads: the "first" feature (BERT's), or the "mean" of all, which learns more
    from few texts where nothing was pre-trained."""
    pretrained: Free[str | None] = None
    """Directory of a run whose encoder and tokenizer to begin with, of the same shape as this;
    "{placement}" in it stands for the placement's name. None begins from scratch."""


@configuration
class ClassificationDataConfig:
    """Labelled texts: the `data` section of a recipe."""

    source: str = "builtin:word-order"
    """PATH (a .tsv, .csv, .jsonl or .json file, maybe packed, a folder with train and dev files, or
    folders of .txt files that name the classes), hf:NAME[:CONFIG[:SPLIT]] or builtin:word-order."""
    glue: Glue = "none"
    """One of GLUE's tasks, which sets columns, metric and kind of label; "none" for your own
    data."""
    text_column: str | None = None
    """Column that has the text; None finds it by its usual names."""
    pair_column: str | None = None
    """That has the text to compare it with; None for single texts."""
    label_column: str | None = None
    """That has the label; None finds it."""
    label_until: str | None = None
    """Only what stands before this mark is the label: ":" makes LOC of LOC:city."""
    target: Literal["class", "number"] = "class"
    """"class", or "number" for regression."""
    labels: tuple[str, ...] | None = None
    """The classes in order; None for the training set's (a file's are sorted)."""
    metric: Metric = "auto"
    """What checkpoints and comparisons go by; "auto" is accuracy, Pearson correlation for numbers,
    or GLUE's choice."""
    tokenizer: str = "auto"
    """"auto" (that of `model.pretrained`, or else "bpe"), "bpe" (byte-level, trained on the
    training texts), "bytes", or the path of a tokenizer."""
    vocab_size: Vocabulary = 8192
    """Of a "bpe" tokenizer."""
    max_length: Annotated[int, Interval(ge=8, lt=LARGEST)] = 512
    """Tokens of an input at most; of a pair, the longer text is cut first."""
    token_dropout: Dropout = 0.0
    """Chance that a token of a training text is hidden: the mask stands in its place, each time in
    that of others. Helps where texts are few."""
    separator: Literal["single", "double"] = "double"
    """Whether one or two `</s>` stand between the texts of a pair."""
    validation_fraction: Share = 0.1
    """Share of rows, chosen by the hash of their text, that is held out where the source has no
    validation set."""
    validation_source: str | None = None
    """Another source to validate on."""

    @rule
    def _labels_differ(self) -> Iterator[str]:
        if self.labels is not None and len(set(self.labels)) < max(2, len(self.labels)):
            yield f"labels must be two or more different ones, not {list(self.labels)}"
        if self.vocab_size < 256 + len(SPECIAL):
            yield f"vocab_size must be {256 + len(SPECIAL)} or more, not {self.vocab_size}"

    @rule
    def _metric_suits_the_target(self) -> Iterator[str]:
        if self.metric != "auto" and self.number != (self.metric in ("pearson", "spearman")):
            yield f"metric {self.metric!r} is not for a {self.kind} as the target"

    @rule
    def _source_is_there(self) -> Iterator[str]:
        yield from wrong_builtin(self.source, NAMES, "labelled text")

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
