"""The `model` and `data` sections of recipes of translation, and what all parts share. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from magneto.config import LARGEST
from magneto.fields import Dropout, Free, NonNegativeInt, PositiveInt, Share, configuration, rule
from magneto.nn.config import TransformerConfig

Texts = tuple[str, str]
"""A sentence and its translation."""


@configuration
class TranslationConfig(TransformerConfig):
    """An encoder-decoder over text; needs `encoder_layers` and `decoder_layers`."""

    vocab_size: PositiveInt | None = None
    """Tokens of the shared vocabulary; None for as many as the data's has."""
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    """"sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance."""
    label_smoothing: Free[Dropout] = 0.0
    """Share of the target spread over the vocabulary, in training only."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Rows of logits that exist at once in the loss; 0 for all."""

    @rule
    def _output_is_the_embedding(self) -> Iterator[str]:
        if self.parametrization == "mup":
            yield ("parametrization: 'mup' scales the output matrix and the embedding differently, "
                   "and translation has one matrix for both")  # fmt: skip


@configuration
class ParallelDataConfig:
    """Parallel text: the `data` section of a recipe."""

    source: str = "builtin:phrases"
    """PATH (a folder, the stem of line pairs such as a.en and a.de, or a .tsv, .csv, .jsonl, .json
    or .parquet file), hf:NAME, or builtin:phrases, of some languages if they are named after a
    colon, as in builtin:phrases:de,en."""
    validation_source: str | None = None
    """Another source to validate on: its validation split if it has one, else all of it. By default
    the source's own validation split; for a pair of languages that has none, a share of its
    sentences is held out."""
    validation_fraction: Share = 0.02
    """That share, chosen by the hash of the sentence in `pivot_language`."""
    validation_limit: PositiveInt | None = None
    """Pairs of sentences per pair of languages that are validated on, at most."""
    languages: tuple[str, ...] | None = None
    """Codes of the languages to use; null for all there are. Without `directions`, each must have
    text with `pivot_language`."""
    pivot_language: str = "en"
    """Every other language is translated from it and into it (English in OPUS-100). Text in two
    other languages alone is translated both ways."""
    directions: tuple[str, ...] | None = None
    """Directions to train, such as en-de (from en to de), instead of all with `pivot_language`."""
    tokenizer: str = "bpe"
    """"bpe" or "sentencepiece" (joint, trained on first use), "bytes", or the path of a
    tokenizer.json, of a SentencePiece .model, or of a run's tokenizer directory."""
    vocab_size: Annotated[int, Interval(ge=257, lt=LARGEST)] = 8192
    """Of a tokenizer trained here; each language adds a tag."""
    tokenizer_lines: PositiveInt = 60_000
    """Sentences that "sentencepiece" learns from, drawn at random from 50M characters that pairs of
    languages share evenly. Many languages need many: a million took a minute of one core and 1.3 GB
    for 64000 pieces."""
    max_length: Annotated[int, Interval(ge=3, lt=LARGEST)] = 256
    """Longest sentence that is trained on, in tokens of either side with tag and end."""
    max_ratio: Annotated[float, Interval(ge=1)] = 4.0
    """Largest ratio of the two sides' lengths, in characters or in bytes, whichever are more alike;
    sides that differ by 20 or fewer always pass."""
    temperature: Annotated[float, Interval(ge=1)] = 5.0
    """T of the sampling over directions, each by (its size) ** (1 / T): 1 takes text as it comes,
    more gives small languages more (arXiv 1907.05019 takes 5)."""
    max_tokens: PositiveInt = 4096
    """Largest padded size of a group of sentences of like length: its sentences times its longest
    side. `training.batch_size` counts groups, so that 128 of 4096 are the paper's batch."""
    block: PositiveInt = 262144
    """Sentences that are sorted by length at a time."""
    select_by: Literal["loss", "bleu"] = "loss"
    """What chooses the best checkpoint: "loss", or "bleu" of greedy translations."""
    bleu_sentences: PositiveInt = 200
    """Of each direction, translated at each evaluation if BLEU chooses; spread over its batches, so
    that `training.evaluate_limit` may take fewer."""

    @rule
    def _groups_hold_the_longest(self) -> Iterator[str]:
        if self.max_tokens < self.max_length:
            yield f"max_tokens ({self.max_tokens}) must be max_length ({self.max_length}) or more"

    @rule
    def _directions_are_two_languages(self) -> Iterator[str]:
        for direction in self.directions or ():
            source, target = split_direction(direction)
            if not source or not target or source == target:
                yield f"directions are two languages such as en-de, not {direction!r}"

    @rule
    def _languages_are_those_sought(self) -> Iterator[str]:
        languages = set(self.languages or ())
        if self.languages is not None and len(languages) < 2:
            yield "languages must be two or more"
        elif self.languages and (beside := sorted(sought_languages(self) - languages)):
            where = "a direction's" if self.directions else "the pivot language"
            yield f"languages lack {', '.join(beside)} ({where})"


def sought_languages(config: ParallelDataConfig) -> frozenset[str]:
    """Return the languages of which text must have one: the directions', or the pivot language."""
    directions = config.directions or ()
    return frozenset(name for d in directions for name in split_direction(d)) or frozenset(
        [config.pivot_language]
    )


def split_direction(direction: str) -> tuple[str, str]:
    """Return the languages of a direction: en-de, or en>zh-CN where a code has a dash itself."""
    source, _, target = direction.partition(">" if ">" in direction else "-")
    return source.strip(), target.strip()


# What is counted of a pair of languages: pairs of sentences read, those used, and why others are
# left out.
READ, KEPT = "read", "kept"
DUPLICATE = "duplicates"
HELD_OUT = "held out for validation"
TOO_LONG = "too long"
UNLIKE = "of unlike length"
BEYOND_LIMIT = "beyond the limit"
