"""The `model` and `data` sections of recipes of text. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from magneto.config import ConfigError, nearest, problem_lines
from magneto.data.sources import SPLIT_NAMES, check_builtin, parse_source
from magneto.data.tokenizer import END, MOST_TOKENS, SPECIAL
from magneto.nn.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TransformerConfig):
    """A decoder-only language model.

    Attributes:
        vocab_size: Tokens; None for as many as the tokenizer has.
        tie_embeddings: Whether the output matrix is the embedding table.
        embedding_scale: "sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance, as the
            paper's theory has its input and as fairseq does.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    vocab_size: int | None = None
    tie_embeddings: bool = True
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    loss_chunk: int = 1024


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(TransformerConfig):
    """An encoder over tokens.

    Attributes:
        vocab_size: Tokens; None for as many as the tokenizer has.
        token_types: Kinds of segment with a learned vector each; 0 for none. BERT has 2.
        embedding_scale: "sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance.
    """

    vocab_size: int | None = None
    token_types: int = 0
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelConfig(TextEncoderConfig):
    """A text encoder with a head that guesses tokens.

    Attributes:
        tie_embeddings: Whether the output matrix is the embedding table.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    tie_embeddings: bool = True
    loss_chunk: int = 1024


@dataclass(frozen=True, kw_only=True)
class TextDataConfig:
    """Text for language modelling: the `data` section of a recipe.

    Attributes:
        source: PATH (file or folder of .txt, .jsonl, .json, .csv, .tsv, .parquet or .tar, also
            packed), hf:NAME[:CONFIG[:SPLIT]] or builtin:docstrings.
        text_field: Name of the text in records: a key, or a column of a table.
        document: What a document of a .txt file is: some "paragraphs", which end at a blank line,
            or each "line", for text with one sentence per line.
        tokenizer: "bpe" (byte-level, trained on the source on first use), "bytes", or the path of a
            tokenizer.json or a SentencePiece .model.
        vocab_size: Of a "bpe" tokenizer.
        max_length: Tokens of a sequence.
        validation_fraction: Share of documents, chosen by their hash, that is held out where the
            source has no validation split; one at least.
        validation_source: Another source to validate on; then nothing is held out.
        mask_documents: Whether attention stops at document boundaries inside a sequence.
        streaming: Read and tokenise while training, for what fits no disk; nothing is cached.
        shuffle_documents: Documents in a streaming shuffle block.
    """

    # Reserved in a "bpe" tokenizer.
    special: ClassVar[tuple[str, ...]] = (END,)

    source: str = "builtin:docstrings"
    text_field: str = "text"
    document: Literal["paragraphs", "line"] = "paragraphs"
    tokenizer: str = "bpe"
    vocab_size: int = 8192
    max_length: int = 512
    validation_fraction: float = 0.05
    validation_source: str | None = None
    mask_documents: bool = False
    streaming: bool = False
    shuffle_documents: int = 1024

    def __post_init__(self) -> None:
        wrong = []
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.max_length < 1:
            wrong.append(f"max_length must be 1 or more, not {self.max_length}")
        least = 256 + len(self.special)
        if self.vocab_size < least:
            wrong.append(
                f"vocab_size must be {least} or more (256 bytes and {', '.join(self.special)}), "
                f"not {self.vocab_size}"
            )
        if self.vocab_size > MOST_TOKENS:
            wrong.append(f"vocab_size must be at most {MOST_TOKENS:,}, not {self.vocab_size}")
        if self.shuffle_documents < 1:
            wrong.append(f"shuffle_documents must be 1 or more, not {self.shuffle_documents}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class MaskedTextDataConfig(TextDataConfig):
    """Text for masked language modelling: the `data` section of a recipe.

    Attributes:
        mask_ratio: Share of a sequence's tokens to guess (BERT's and the paper's 15 %).
        masking: What is chosen: single tokens, whole words (all their tokens), or spans.
        corruption: What stands in a chosen token's place: always the mask ("mask", as in the
            authors' code), or by BERT's rule 80 % mask, 10 % another token, 10 % itself ("bert").
    """

    special: ClassVar[tuple[str, ...]] = SPECIAL

    mask_ratio: float = 0.15
    masking: Literal["token", "word", "span"] = "token"
    corruption: Literal["mask", "bert"] = "mask"

    def __post_init__(self) -> None:
        wrong = []
        try:
            super().__post_init__()
        except ValueError as error:
            wrong += problem_lines(error)
        if not 0 < self.mask_ratio < 1:
            wrong.append(f"mask_ratio must be in (0, 1), not {self.mask_ratio}")
        if self.max_length == 1:
            wrong.append("max_length must be 2 or more: the first token only begins the sequence")
        if wrong:
            raise ConfigError(wrong)


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
