"""Model and data configurations of translation."""

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
    """Configuration of a translation model, which needs `encoder_layers` and `decoder_layers`."""

    vocab_size: PositiveInt | None = None
    """Size of the vocabulary that source and target share; null takes the size from the data."""
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    """Scale of the embeddings, which are initialised from N(0, 1/width). "sqrt_width" multiplies
    the embeddings by sqrt(width). The multiplied embeddings have unit variance."""
    label_smoothing: Free[Dropout] = 0.0
    """Label smoothing, in training only."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Number of tokens whose logits the loss computes at a time. A smaller number needs less
    memory. With `loss_chunk` 0, the loss computes the logits of all tokens at once."""

    @rule
    def _no_mup_with_tied_embeddings(self) -> Iterator[str]:
        if self.parametrization == "mup":
            yield ("parametrization: 'mup' does not support translation, because embedding and "
                   "output share one matrix")  # fmt: skip


@configuration
class ParallelDataConfig:
    """Data section of translation."""

    source: str = "builtin:phrases"
    """Source of parallel text: PATH, hf:NAME or builtin:phrases[:CODES] (such as
    builtin:phrases:de,en). PATH is a folder or a file (.tsv, .csv, .jsonl, .json or .parquet). For
    aligned files such as a.en and a.de, PATH may be the stem `a`."""
    validation_source: str | None = None
    """Separate source of validation text. From `validation_source`, Magneto reads the validation
    split, else the test split, else the training split. By default, `source` provides the
    validation text."""
    validation_fraction: Share = 0.02
    """Share of the sentence pairs for validation, in each language pair without a validation split.
    `validation_fraction` is ignored if `validation_source` is set. A hash of the sentence in
    `pivot_language` selects the validation pairs."""
    validation_limit: PositiveInt | None = None
    """Maximum number of validation sentences per language pair; null for all."""
    languages: tuple[str, ...] | None = None
    """Codes of the languages to use; null uses all. Without `directions`, each language must be
    paired with `pivot_language`."""
    pivot_language: str = "en"
    """Language that is paired with all other languages (English in OPUS-100). If `source` has only
    two languages, and neither is English, both directions between them are trained by default."""
    directions: tuple[str, ...] | None = None
    """Directions to train, such as en-de (from en to de); null trains all directions from and into
    `pivot_language`."""
    tokenizer: str = "bpe"
    """Tokenizer of all languages. The kinds "bpe" and "sentencepiece" are trained on first use. The
    kind "bytes" needs no training. A path names a tokenizer.json, a SentencePiece .model, or the
    tokenizer directory of a run."""
    vocab_size: Annotated[int, Interval(ge=257, lt=LARGEST)] = 8192
    """Vocabulary size of a trained tokenizer, without the language tags."""
    tokenizer_lines: PositiveInt = 60_000
    """Number of sentences on which a "sentencepiece" tokenizer is trained. The sentences are
    sampled from 50 million characters of text, in equal parts from all language pairs. For many
    languages, choose a larger number of sentences. Training a tokenizer of 64,000 tokens on a
    million sentences took a minute on one core, and 1.3 GB of memory."""
    max_length: Annotated[int, Interval(ge=3, lt=LARGEST)] = 256
    """Maximum length of a sentence in tokens, tag and end token included. Training leaves out pairs
    in which a sentence exceeds the maximum."""
    max_ratio: Annotated[float, Interval(ge=1)] = 4.0
    """Maximum ratio of the lengths of a pair's two sentences. A pair is left out if its lengths
    exceed this ratio both in characters and in bytes, unless the lengths differ by at most 20
    characters, or by at most 20 bytes."""
    temperature: Annotated[float, Interval(ge=1)] = 5.0
    """Temperature T for sampling directions. The probability of a direction with N sentence pairs
    is proportional to N ** (1 / T). A larger T favours small languages. The default temperature is
    from arXiv 1907.05019."""
    max_tokens: PositiveInt = 4096
    """Maximum size of a group of sentence pairs of similar length. A group's size is the number of
    pairs times the length of the longest sentence in tokens. `training.batch_size` counts groups. A
    batch of the paper has 128 groups of 4096 tokens."""
    block: PositiveInt = 262144
    """Number of sentence pairs that are sorted by length together."""
    select_by: Literal["loss", "bleu"] = "loss"
    """Metric that selects the best checkpoint: "loss", or "bleu" of greedy translations."""
    bleu_sentences: PositiveInt = 200
    """With `select_by: bleu`, each evaluation translates at most this number of sentences per
    direction. If `training.evaluate_limit` shortens the evaluation, the number of translated
    sentences shrinks in proportion."""

    @rule
    def _groups_fit_the_longest(self) -> Iterator[str]:
        if self.max_tokens < self.max_length:
            yield f"max_tokens ({self.max_tokens}) must be at least max_length ({self.max_length})"

    @rule
    def _directions_are_two_languages(self) -> Iterator[str]:
        for direction in self.directions or ():
            source, target = split_direction(direction)
            if not source or not target or source == target:
                yield f"each direction must be two languages such as en-de, not {direction!r}"

    @rule
    def _languages_include_the_required(self) -> Iterator[str]:
        languages = set(self.languages or ())
        if self.languages is not None and len(languages) < 2:
            yield "languages must name at least two languages"
        elif self.languages and (missing := sorted(required_languages(self) - languages)):
            where = "used in directions" if self.directions else "the pivot language"
            yield f"languages must include {', '.join(missing)} ({where})"


def required_languages(config: ParallelDataConfig) -> frozenset[str]:
    """Return the languages of `directions`, or the pivot language if no directions are set."""
    directions = config.directions or ()
    return frozenset(name for d in directions for name in split_direction(d)) or frozenset(
        [config.pivot_language]
    )


def split_direction(direction: str) -> tuple[str, str]:
    """Return the two languages of a direction such as en-de.

    Use ">" between the codes if the first code contains a dash (zh-CN>en).
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
