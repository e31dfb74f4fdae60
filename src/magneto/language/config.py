"""Model and data configurations of language modelling and text classification (no torch)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from magneto.config import LARGEST
from magneto.data.sources import SPLIT_NAMES, builtin_mistakes
from magneto.data.tokenizer import END, MOST_TOKENS, SPECIAL
from magneto.fields import Dropout, Free, NonNegativeInt, PositiveInt, Share, configuration, rule
from magneto.nn.config import TransformerConfig

# At least all bytes and the special tokens. Causal language models need only `</s>`.
Vocabulary = Annotated[int, Interval(ge=256 + len(SPECIAL), le=MOST_TOKENS)]


@configuration
class LanguageModelConfig(TransformerConfig):
    """Configuration of a decoder-only language model."""

    vocab_size: PositiveInt | None = None
    """Vocabulary size; null uses the tokenizer's vocabulary size."""
    tie_embeddings: bool = True
    """If true, the token embedding and the output projection are one matrix."""
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    """Scale of the embeddings, which are initialised from N(0, 1/width). "sqrt_width" multiplies
    the embeddings by sqrt(width), as in fairseq and in the paper's theory. The multiplied
    embeddings have unit variance."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Number of tokens whose logits the loss computes at a time. A smaller number needs less
    memory. With `loss_chunk` 0, the loss computes the logits of all tokens at once."""


@configuration
class TextEncoderConfig(TransformerConfig):
    """Configuration of a text encoder."""

    vocab_size: PositiveInt | None = None
    """Vocabulary size; null uses the tokenizer's vocabulary size."""
    token_types: NonNegativeInt = 0
    """Number of learned segment embeddings (2 in BERT); 0 adds none."""
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    """Scale of the embeddings, which are initialised from N(0, 1/width). "sqrt_width" multiplies
    the embeddings by sqrt(width). The multiplied embeddings have unit variance."""


@configuration
class MaskedLanguageModelConfig(TextEncoderConfig):
    """Configuration of a text encoder with a masked-token head."""

    tie_embeddings: bool = True
    """If true, the token embedding and the output projection are one matrix."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Number of tokens whose logits the loss computes at a time. A smaller number needs less
    memory. With `loss_chunk` 0, the loss computes the logits of all tokens at once."""


@configuration
class TextDataConfig:
    """Data section of causal language modelling."""

    # Special tokens of a "bpe" tokenizer.
    special: ClassVar[tuple[str, ...]] = (END,)

    source: str = "builtin:docstrings"
    """Source of the text: PATH, hf:NAME[:CONFIG[:SPLIT]] or builtin:docstrings. A path is a file or
    folder of .txt, .jsonl, .json, .csv, .tsv, .parquet or .tar, compressed or not."""
    text_field: str = "text"
    """Name of the text's key (.jsonl, .json) or column (tables)."""
    document: Literal["paragraphs", "line"] = "paragraphs"
    """Document boundaries of a .txt file. "paragraphs" groups several paragraphs into a document. A
    paragraph ends at a blank line. "line" makes each line a document."""
    tokenizer: str = "bpe"
    """Tokenizer: "bpe" (byte-level, trained on the source on first use), "bytes", or the path of a
    tokenizer.json or a SentencePiece .model."""
    vocab_size: Annotated[int, Interval(ge=257, le=MOST_TOKENS)] = 8192
    """Vocabulary size of a "bpe" tokenizer."""
    max_length: PositiveInt = 512
    """Sequence length in tokens."""
    validation_fraction: Share = 0.05
    """Share of documents used for validation if the source has no validation split. A hash of the
    text decides which documents are held out. At least one document is held out."""
    validation_source: str | None = None
    """Separate source of validation text. If `validation_source` is set, no documents of `source`
    are held out."""
    mask_documents: bool = False
    """Restrict attention to tokens of the same document."""
    streaming: bool = False
    """Read and tokenise the text during training, without a cache. Use streaming for corpora larger
    than the disk. A "bpe" tokenizer is trained on the first 20,000 documents. The validation
    set has at most 20,000 x `validation_fraction` documents."""


@configuration
class MaskedTextDataConfig(TextDataConfig):
    """Data section of masked language modelling."""

    special: ClassVar[tuple[str, ...]] = SPECIAL

    vocab_size: Vocabulary = 8192
    """Vocabulary size of a "bpe" tokenizer."""
    max_length: Annotated[int, Interval(ge=2, lt=LARGEST)] = 512
    """Sequence length in tokens. The first token is always `<s>`."""
    mask_ratio: Share = 0.15
    """Share of a sequence's tokens that is masked (0.15 in BERT and in the paper)."""
    masking: Literal["token", "word", "span"] = "token"
    """Unit of masking: a single "token", all tokens of a "word", or a "span" of tokens."""
    corruption: Literal["mask", "bert"] = "mask"
    """Replacement of selected tokens. "mask" replaces every selected token by the mask token,
    as in the authors' code. "bert" masks 80 % of the selected tokens, replaces 10 % by a random
    token, and keeps 10 % unchanged."""


@dataclass(frozen=True)
class GlueTask:
    """Columns, metric and kind of label of a GLUE task.

    Attributes:
        text: Accepted names of the text column, preferred first.
        pair: Accepted names of the second text's column; empty for single texts.
        label: Accepted names of the label's column.
        column_indices: Indices of the columns of text, pair (if any) and label, from 0, in files
            without a header. `column_indices` is empty if all files have a header.
        metric: Metric of the task in the paper's table.
        regression: Whether the label is a number.
    """

    text: tuple[str, ...]
    pair: tuple[str, ...]
    label: tuple[str, ...] = ("label", "gold_label")
    column_indices: tuple[int, ...] = ()
    metric: str = "accuracy"
    regression: bool = False


GLUE = {
    "mnli": GlueTask(
        ("premise", "sentence1"), ("hypothesis", "sentence2"), ("gold_label", "label")
    ),
    "qnli": GlueTask(("question",), ("sentence",)),
    "qqp": GlueTask(("question1",), ("question2",), ("is_duplicate", "label")),
    "sst2": GlueTask(("sentence",), (), column_indices=(0, 1)),
    "cola": GlueTask(("sentence",), (), column_indices=(3, 1), metric="matthews"),
    "mrpc": GlueTask(("#1 String", "sentence1"), ("#2 String", "sentence2"), ("Quality", "label")),
    "stsb": GlueTask(
        ("sentence1",), ("sentence2",), ("score", "label"), (1, 2, 0), "pearson", regression=True
    ),
    "rte": GlueTask(("sentence1", "text", "premise"), ("sentence2", "hypothesis")),
}
# Accepted names of files and of hub splits, preferred first. MNLI has two validation sets.
TRAIN = {
    "train": (
        *SPLIT_NAMES["train"],
        *("in_domain_train", "msr_paraphrase_train", "multinli_1.0_train", "sts-train"),
    )
}
VALIDATION = {
    "validation": (
        *("dev", "dev_matched", *SPLIT_NAMES["validation"], "validation_matched", "in_domain_dev"),
        *("multinli_1.0_dev_matched", "msr_paraphrase_test", "sts-dev"),
    ),
    "mismatched": ("dev_mismatched", "validation_mismatched", "multinli_1.0_dev_mismatched"),
}


Metric = Literal["auto", "accuracy", "f1", "matthews", "pearson", "spearman"]
Glue = Literal["none", "mnli", "qnli", "qqp", "sst2", "cola", "mrpc", "stsb", "rte"]
NAMES = ("word-order",)


@configuration
class TextClassifierConfig(TextEncoderConfig):
    """Configuration of a text encoder with a classification or regression head."""

    classes: PositiveInt | None = None
    """Number of classes (1 for regression); null uses the number of classes in the data."""
    head_dropout: Dropout = 0.1
    """Dropout before and between the head's two layers (0.1 in BERT and in the paper)."""
    pooling: Literal["first", "mean"] = "first"
    """Input of the head: the feature of the "first" token, as in BERT, or the "mean" of all
    features. Without pre-training, "mean" needs fewer training texts than "first"."""
    pretrained: Free[str | None] = None
    """Directory of a pre-training run. The encoder of the run initialises the encoder of the model.
    The shapes of the two encoders must be equal. The name of the norm placement replaces
    "{placement}" in the path. null trains from scratch."""


@configuration
class ClassificationDataConfig:
    """Data section of text classification and regression."""

    source: str = "builtin:word-order"
    """Source of the texts: PATH, hf:NAME[:CONFIG[:SPLIT]] or builtin:word-order. A path is a table
    (.tsv, .csv, .jsonl or .json, compressed or not) or a folder. A folder has train and dev files,
    or one subfolder of .txt files per class."""
    glue: Glue = "none"
    """GLUE task, which sets columns, metric and kind of label; "none" for other data."""
    text_column: str | None = None
    """Column of the text; null looks for a column with a usual name."""
    pair_column: str | None = None
    """Column of the second text of a pair; null for single texts."""
    label_column: str | None = None
    """Column of the label; null looks for a column with a usual name."""
    label_delimiter: str | None = None
    """Delimiter that ends the label. With ":", the label of LOC:city is LOC. With null, the whole
    field is the label."""
    target: Literal["class", "number"] = "class"
    """Kind of label: "class" for classification, "number" for regression."""
    labels: tuple[str, ...] | None = None
    """Class names in order. null uses the names in the training set, sorted unless the data set
    declares an order."""
    metric: Metric = "auto"
    """Metric that selects checkpoints and that comparisons report. "auto" uses the metric of the
    GLUE task. Without a GLUE task, "auto" uses accuracy, or the Pearson correlation for
    regression."""
    tokenizer: str = "auto"
    """Tokenizer: "auto", "bpe" (byte-level, trained on the training texts), "bytes", or the path of
    a tokenizer. "auto" uses the tokenizer of `model.pretrained`. Without pre-training, "auto" is
    "bpe"."""
    vocab_size: Vocabulary = 8192
    """Vocabulary size of a "bpe" tokenizer."""
    max_length: Annotated[int, Interval(ge=8, lt=LARGEST)] | None = 512
    """Maximum length of an input in tokens. Longer inputs are truncated. In a pair, the longer text
    is truncated first. null: the 99th percentile of the lengths of the training inputs, but at most
    `model.max_length`."""
    token_dropout: Dropout = 0.0
    """Probability of replacing a token of a training text by the mask token. The masked tokens
    differ between epochs. Token dropout helps with small training sets."""
    separator: Literal["single", "double"] = "double"
    """Number of `</s>` tokens between the texts of a pair: one ("single") or two ("double")."""
    validation_fraction: Share = 0.1
    """Share of rows used for validation if the source has no validation set. A hash of the text
    selects the validation rows."""
    validation_source: str | None = None
    """Separate source of validation rows. Its validation split is used. If it has no validation
    split, its test split is used, but not for GLUE tasks, whose test rows have no labels."""

    @rule
    def _labels_differ(self) -> Iterator[str]:
        if self.labels is not None and len(set(self.labels)) < max(2, len(self.labels)):
            yield f"labels must be two or more different names, not {list(self.labels)}"

    @rule
    def _metric_suits_the_target(self) -> Iterator[str]:
        if self.metric != "auto" and self.regression != (self.metric in ("pearson", "spearman")):
            target = "number" if self.regression else "class"
            yield f"metric {self.metric!r} does not apply to target {target!r}"

    @rule
    def _builtin_exists(self) -> Iterator[str]:
        yield from builtin_mistakes(self.source, NAMES, "labelled text")

    @property
    def input_length(self) -> int:
        """Maximum length of an input in tokens.

        Raises:
            ValueError: If `max_length` is null.
        """
        if self.max_length is None:
            raise ValueError("data.max_length is null: set it, or call the task's `prepare` to "
                             "derive it from the data.")  # fmt: skip
        return self.max_length

    @property
    def regression(self) -> bool:
        return GLUE[self.glue].regression if self.glue in GLUE else self.target == "number"

    @property
    def primary_metric(self) -> str:
        """Metric that selects checkpoints and that comparisons report."""
        if self.metric != "auto":
            return self.metric
        if self.glue in GLUE:
            return GLUE[self.glue].metric
        return "pearson" if self.regression else "accuracy"

    @property
    def paired(self) -> bool:
        return bool(GLUE[self.glue].pair) if self.glue in GLUE else bool(self.pair_column)
