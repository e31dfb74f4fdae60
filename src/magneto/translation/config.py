"""The `model` and `data` sections of recipes of translation, and what all parts share. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.config import ConfigError
from magneto.nn.config import TransformerConfig

Texts = tuple[str, str]
"""A sentence and its translation."""


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(TransformerConfig):
    """An encoder-decoder over text; needs `encoder_layers` and `decoder_layers`.

    Attributes:
        vocab_size: Tokens of the shared vocabulary; None for as many as the data's has.
        embedding_scale: "sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance.
        label_smoothing: Share of the target spread over the vocabulary, in training only.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    vocab_size: int | None = None
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    label_smoothing: float = 0.0
    loss_chunk: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), not {self.label_smoothing}")


@dataclass(frozen=True, kw_only=True)
class ParallelDataConfig:
    """Parallel text: the `data` section of a recipe.

    Attributes:
        source: PATH (a folder, the stem of line pairs such as a.en and a.de, or a .tsv, .csv,
            .jsonl, .json or .parquet file), hf:NAME, or builtin:phrases, of some languages if they
            are named after a colon, as in builtin:phrases:de,en.
        validation_source: Another source to validate on: its validation split if it has one, else
            all of it. By default the source's own validation split; for a pair of languages that
            has none, a share of its sentences is held out.
        validation_fraction: That share, chosen by the hash of the sentence in `pivot_language`.
        validation_limit: Pairs of sentences per pair of languages that are validated on, at most.
        languages: Codes of the languages to use; null for all there are. Without `directions`, each
            must have text with `pivot_language`.
        pivot_language: Every other language is translated from it and into it (English in
            OPUS-100). Text in two other languages alone is translated both ways.
        directions: Directions to train, such as en-de (from en to de), instead of all with
            `pivot_language`.
        tokenizer: "bpe" or "sentencepiece" (joint, trained on first use), "bytes", or the path of
            a tokenizer.json, of a SentencePiece .model, or of a run's tokenizer directory.
        vocab_size: Of a tokenizer trained here; each language adds a tag.
        tokenizer_lines: Sentences that "sentencepiece" learns from, drawn at random from 50M
            characters that pairs of languages share evenly. Many languages need many: a million
            took a minute of one core and 1.3 GB for 64000 pieces.
        max_length: Longest sentence that is trained on, in tokens of either side with tag and end.
        max_ratio: Largest ratio of the two sides' lengths, in characters or in bytes, whichever
            are more alike; sides that differ by 20 or fewer always pass.
        temperature: T of the sampling over directions, each by (its size) ** (1 / T): 1 takes text
            as it comes, more gives small languages more (arXiv 1907.05019 takes 5).
        max_tokens: Largest padded size of a group of sentences of like length: its sentences
            times its longest side. `training.batch_size` counts groups, so that 128 of 4096 are
            the paper's batch.
        block: Sentences that are sorted by length at a time.
        select_by: What chooses the best checkpoint: "loss", or "bleu" of greedy translations.
        bleu_sentences: Of each direction, translated at each evaluation if BLEU chooses; spread
            over its batches, so that `training.evaluate_limit` may take fewer.

    Raises:
        ValueError: For impossible values, all in one message.
    """

    source: str = "builtin:phrases"
    validation_source: str | None = None
    validation_fraction: float = 0.02
    validation_limit: int | None = None
    languages: tuple[str, ...] | None = None
    pivot_language: str = "en"
    directions: tuple[str, ...] | None = None
    tokenizer: str = "bpe"
    vocab_size: int = 8192
    tokenizer_lines: int = 60_000
    max_length: int = 256
    max_ratio: float = 4.0
    temperature: float = 5.0
    max_tokens: int = 4096
    block: int = 262144
    select_by: Literal["loss", "bleu"] = "loss"
    bleu_sentences: int = 200

    def __post_init__(self) -> None:
        least = {
            "vocab_size": 257,
            "max_length": 3,
            "block": 1,
            "bleu_sentences": 1,
            "tokenizer_lines": 1,
        }
        wrong = [
            f"{name} must be {number} or more, not {getattr(self, name)}"
            for name, number in least.items()
            if getattr(self, name) < number
        ]
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.max_ratio < 1 or self.temperature < 1:
            wrong.append("max_ratio and temperature must be 1 or more")
        if self.max_tokens < self.max_length:
            wrong.append(
                f"max_tokens ({self.max_tokens}) must be max_length ({self.max_length}) or more"
            )
        for direction in self.directions or ():
            source, target = split_direction(direction)
            if not source or not target or source == target:
                wrong.append(f"directions are two languages such as en-de, not {direction!r}")
        if self.languages is not None:
            wrong += self._wrong_languages(set(self.languages))
        if wrong:
            raise ConfigError(wrong)

    def _wrong_languages(self, languages: set[str]) -> list[str]:
        if len(languages) < 2:
            return ["languages must be two or more"]
        if beside := sorted(sought_languages(self) - languages):
            where = "a direction's" if self.directions else "the pivot language"
            return [f"languages lack {', '.join(beside)} ({where})"]
        return []


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
