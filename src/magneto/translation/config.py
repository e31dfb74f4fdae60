"""Model and data configurations of translation, and names of counters (no torch import)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from magneto.config import LARGEST
from magneto.fields import Dropout, Free, NonNegativeInt, PositiveInt, Share, configuration, rule
from magneto.nn.config import TransformerConfig

SentencePair = tuple[str, str]
"""A sentence and its translation."""


@configuration
class TranslationConfig(TransformerConfig):
    """Configuration of a translation model; it requires `encoder_layers` and `decoder_layers`."""

    vocab_size: PositiveInt | None = None
    """Size of the vocabulary of source and target; null uses the size of the data's vocabulary."""
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    """Scale of the embeddings, which are initialised from N(0, 1/width). "sqrt_width" multiplies
    them by sqrt(width), so that they have unit variance."""
    label_smoothing: Free[Dropout] = 0.0
    """Label smoothing, in training only."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Number of rows of logits that the loss computes at a time, to limit memory; 0 computes
    all."""

    @rule
    def _no_mup_with_tied_embeddings(self) -> Iterator[str]:
        if self.parametrization == "mup":
            yield ("parametrization: 'mup' does not support translation, which shares one matrix "
                   "between embedding and output")  # fmt: skip


@configuration
class ParallelDataConfig:
    """Data section of translation."""

    source: str = "builtin:phrases"
    """Source of parallel text: PATH, hf:NAME or builtin:phrases[:CODES], such as
    builtin:phrases:de,en. A path is a folder, the stem of aligned files such as a.en and a.de, or a
    .tsv, .csv, .jsonl, .json or .parquet file."""
    validation_source: str | None = None
    """Separate source of validation text. Its validation split is used, or all of its text if it
    has no validation split. The default is the validation split of `source`. For language pairs
    without a validation split, sentences are held out."""
    validation_fraction: Share = 0.02
    """Share of sentences held out for validation. They are chosen by the hash of the sentence in
    `pivot_language`."""
    validation_limit: PositiveInt | None = None
    """Maximum number of validation sentences per language pair; null for all."""
    languages: tuple[str, ...] | None = None
    """Codes of the languages to use; null uses all. Without `directions`, each language needs text
    paired with `pivot_language`."""
    pivot_language: str = "en"
    """Language from and into which all other languages are translated (English in OPUS-100). A
    source of only two languages, neither of them the pivot language, is translated in both
    directions."""
    directions: tuple[str, ...] | None = None
    """Directions to train, such as en-de (from en to de); null trains all directions with
    `pivot_language`."""
    tokenizer: str = "bpe"
    """Tokenizer: "bpe" or "sentencepiece" (joint, trained on first use), "bytes", or the path of a
    tokenizer.json, of a SentencePiece .model, or of a run's tokenizer directory."""
    vocab_size: Annotated[int, Interval(ge=257, lt=LARGEST)] = 8192
    """Vocabulary size of a trained tokenizer, without the language tags."""
    tokenizer_lines: PositiveInt = 60_000
    """Number of training sentences of "sentencepiece". They are sampled from text of 50 million
    characters, to which each language pair contributes an equal part. Use more for many languages.
    Training 64,000 pieces on a million sentences took a minute on one core and 1.3 GB of memory."""
    max_length: Annotated[int, Interval(ge=3, lt=LARGEST)] = 256
    """Maximum length of a sentence in tokens, tag and end token included. Training pairs with a
    longer sentence in either language are left out."""
    max_ratio: Annotated[float, Interval(ge=1)] = 4.0
    """Maximum ratio of the lengths of a pair's two sentences. The smaller of the ratios in
    characters and in bytes counts. Pairs whose lengths differ by at most 20 characters or 20 bytes
    are never left out."""
    temperature: Annotated[float, Interval(ge=1)] = 5.0
    """Temperature T of the sampling of directions. The probability of a direction with N sentence
    pairs is proportional to N ** (1 / T). With T = 1, it is proportional to N. A larger T favours
    small languages (T = 5 in arXiv 1907.05019)."""
    max_tokens: PositiveInt = 4096
    """Maximum padded size of a group of sentences of similar length. The padded size is the number
    of sentences times the tokens of the longest sentence in either language. `training.batch_size`
    counts groups. The paper's batch is 128 groups of 4096 tokens."""
    block: PositiveInt = 262144
    """Number of sentences sorted by length at a time."""
    select_by: Literal["loss", "bleu"] = "loss"
    """Metric that selects the best checkpoint: "loss", or "bleu" of greedy translations."""
    bleu_sentences: PositiveInt = 200
    """Number of sentences per direction that each evaluation translates with `select_by: bleu`.
    They are spread over the validation batches, so that `training.evaluate_limit` reduces their
    number."""

    @rule
    def _groups_fit_the_longest(self) -> Iterator[str]:
        if self.max_tokens < self.max_length:
            yield f"max_tokens ({self.max_tokens}) must be max_length ({self.max_length}) or more"

    @rule
    def _directions_are_two_languages(self) -> Iterator[str]:
        for direction in self.directions or ():
            source, target = split_direction(direction)
            if not source or not target or source == target:
                yield f"directions must be two languages such as en-de, not {direction!r}"

    @rule
    def _languages_include_the_required(self) -> Iterator[str]:
        languages = set(self.languages or ())
        if self.languages is not None and len(languages) < 2:
            yield "languages must be two or more"
        elif self.languages and (missing := sorted(required_languages(self) - languages)):
            where = "used in directions" if self.directions else "the pivot language"
            yield f"languages must include {', '.join(missing)} ({where})"


def required_languages(config: ParallelDataConfig) -> frozenset[str]:
    """Return the languages of the directions, by default the pivot language."""
    directions = config.directions or ()
    return frozenset(name for d in directions for name in split_direction(d)) or frozenset(
        [config.pivot_language]
    )


def split_direction(direction: str) -> tuple[str, str]:
    """Return the languages of a direction such as en-de.

    If the first code contains a dash, ">" must separate the codes (zh-CN>en).
    """
    source, _, target = direction.partition(">" if ">" in direction else "-")
    return source.strip(), target.strip()


# Counters of a language pair: sentence pairs read, kept, and left out by reason.
READ, KEPT = "read", "kept"
DUPLICATE = "duplicates"
HELD_OUT = "held out for validation"
TOO_LONG = "too long"
LENGTH_MISMATCH = "of mismatched lengths"
BEYOND_LIMIT = "beyond data.validation_limit"
