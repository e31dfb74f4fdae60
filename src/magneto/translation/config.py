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
    """Configuration of a translation model; needs `encoder_layers` and `decoder_layers`."""

    vocab_size: PositiveInt | None = None
    """Size of the shared vocabulary; None takes that of the data."""
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    """"sqrt_width" multiplies the embeddings, initially N(0, 1/width), by sqrt(width).
    They then have unit variance."""
    label_smoothing: Free[Dropout] = 0.0
    """Label smoothing, in training only."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Rows of logits computed at a time in the loss, which bounds its memory; 0 computes all."""

    @rule
    def _no_mup_with_tied_embeddings(self) -> Iterator[str]:
        if self.parametrization == "mup":
            yield ("parametrization: 'mup' does not support translation, which shares one matrix "
                   "between embedding and output")  # fmt: skip


@configuration
class ParallelDataConfig:
    """Data section of translation."""

    source: str = "builtin:phrases"
    """PATH (a folder, the stem of aligned files such as a.en and a.de, or a .tsv, .csv, .jsonl,
    .json or .parquet file), hf:NAME, or builtin:phrases[:CODES], as in builtin:phrases:de,en."""
    validation_source: str | None = None
    """Separate source of validation text: its validation split, or all of it. The default is the
    validation split of `source`. If a language pair has no such split,
    sentences are held out."""
    validation_fraction: Share = 0.02
    """Share of sentences held out for validation, chosen by the hash of the sentence in
    `pivot_language`."""
    validation_limit: PositiveInt | None = None
    """Maximum number of validation sentences per language pair; null for all."""
    languages: tuple[str, ...] | None = None
    """Codes of the languages to use; null uses all. Without `directions`, each language needs text
    with `pivot_language`."""
    pivot_language: str = "en"
    """Language that all others are translated from and into (English in OPUS-100). A source of just
    two other languages is translated both ways."""
    directions: tuple[str, ...] | None = None
    """Directions to train, such as en-de (from en to de); null trains all with `pivot_language`."""
    tokenizer: str = "bpe"
    """"bpe" or "sentencepiece" (joint, trained on first use), "bytes", or the path of a
    tokenizer.json, of a SentencePiece .model, or of a run's tokenizer directory."""
    vocab_size: Annotated[int, Interval(ge=257, lt=LARGEST)] = 8192
    """Vocabulary size of a trained tokenizer, without the language tags."""
    tokenizer_lines: PositiveInt = 60_000
    """Training sentences of "sentencepiece", sampled from 50M characters, which language pairs
    share evenly. Use more for many languages: a million sentences took a minute on one core and
    1.3 GB for 64000 pieces."""
    max_length: Annotated[int, Interval(ge=3, lt=LARGEST)] = 256
    """Maximum length of a sentence in tokens of either language, with tag and end token. Longer
    training pairs are left out."""
    max_ratio: Annotated[float, Interval(ge=1)] = 4.0
    """Largest ratio of the two sentences' lengths, in characters or in bytes, whichever is smaller.
    Lengths that differ by 20 or less always pass."""
    temperature: Annotated[float, Interval(ge=1)] = 5.0
    """Temperature T of sampling over directions, each with probability proportional to
    size ** (1 / T). 1 is proportional sampling; larger values favour small languages (5 in arXiv
    1907.05019)."""
    max_tokens: PositiveInt = 4096
    """Maximum padded size of a group of sentences of similar length: number of sentences times the
    longest side. `training.batch_size` counts groups; the paper's batch is 128 groups of 4096."""
    block: PositiveInt = 262144
    """Number of sentences sorted by length at a time."""
    select_by: Literal["loss", "bleu"] = "loss"
    """Metric that selects the best checkpoint: "loss", or "bleu" of greedy translations."""
    bleu_sentences: PositiveInt = 200
    """Sentences per direction translated at each evaluation with `select_by: bleu`. They are spread
    over the validation batches, so that `training.evaluate_limit` takes fewer."""

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
            where = "of a direction" if self.directions else "the pivot language"
            yield f"languages must include {', '.join(missing)} ({where})"


def required_languages(config: ParallelDataConfig) -> frozenset[str]:
    """Return the languages of the directions, or the pivot language."""
    directions = config.directions or ()
    return frozenset(name for d in directions for name in split_direction(d)) or frozenset(
        [config.pivot_language]
    )


def split_direction(direction: str) -> tuple[str, str]:
    """Return the languages of a direction: en-de, or en>zh-CN if a code has a dash."""
    source, _, target = direction.partition(">" if ">" in direction else "-")
    return source.strip(), target.strip()


# Counters of a language pair: sentence pairs read, kept, and left out by reason.
READ, KEPT = "read", "kept"
DUPLICATE = "duplicates"
HELD_OUT = "held out for validation"
TOO_LONG = "too long"
LENGTH_MISMATCH = "of mismatched lengths"
BEYOND_LIMIT = "beyond data.validation_limit"
