"""Translate texts with a translation model: tokenise, batch by length, search, decode."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from magneto.progress import Progress
from magneto.translation.model import TranslationModel
from magneto.translation.scores import Direction, TranslationScores, score_translations
from magneto.translation.vocabulary import TranslationVocabulary


@dataclass(frozen=True)
class Translated:
    """What became of one text.

    Attributes:
        texts: Translations, best first; one empty text for an empty source.
        scores: Their summed log-probabilities over lengths, if they were asked for.
        cut: Whether the source was longer than the model reads, and the rest left out.
    """

    texts: list[str]
    scores: list[float]
    cut: bool = False


class TextTranslator:
    """Translates texts, in batches of like length, and gives them back in their order.

    Args:
        model: In evaluation mode, on the device to use.
        vocabulary: Its tokens and tags.
        max_length: Tokens of a source at most, tag and end included.
        how: A `magneto.hf.BeamSearch`.

    Raises:
        ModuleNotFoundError: If transformers is not installed.
    """

    def __init__(
        self, model: TranslationModel, vocabulary: TranslationVocabulary, max_length: int, how: Any
    ) -> None:
        from magneto.hf import Translator

        if model.config.positions == "learned":  # there are no others
            max_length = min(max_length, model.config.max_length)
            how = replace(how, longest=min(how.longest, model.config.max_length - 1))
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.count: int = how.count
        self.translator: Any = Translator.of(model, vocabulary.end, how)

    def translate(
        self,
        texts: Sequence[str],
        language: str,
        scored: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Translated]:
        """Translate texts into a language.

        Args:
            texts: Any; those without a visible character are empty, and stay so.
            language: One of the vocabulary's.
            scored: Whether to say how good the model thinks each translation is.
            progress: Told how many texts are done, empty ones not counted.

        Raises:
            ValueError: If the language is not known; names the nearest.
        """
        full = [number for number, text in enumerate(texts) if is_visible(text)]
        sources = self.vocabulary.encode_source([texts[number] for number in full], language)
        cut = [len(tokens) > self.max_length for tokens in sources]
        sources = [self._shortened(tokens) for tokens in sources]
        found = self.translator.search(sources, progress)
        scores = self.translator.score(sources, found) if scored else [[] for _ in found]
        made = [Translated([""] * self.count, [0.0] * self.count * scored) for _ in texts]
        for place, number in enumerate(full):
            written = [self.vocabulary.decode(tokens) for tokens in found[place]]
            made[number] = Translated(written, scores[place], cut[place])
        return made

    def answers(
        self, direction: Direction, texts: Sequence[tuple[str, str]]
    ) -> tuple[Direction, list[tuple[str, str]]]:
        """Return a direction and, for each of its sentences, the translation and the reference."""
        found = self.translate([source for source, _ in texts], direction[1])
        pairs = zip(found, texts, strict=True)
        return direction, [(each.texts[0], reference) for each, (_, reference) in pairs]

    def _shortened(self, tokens: list[int]) -> list[int]:
        if len(tokens) <= self.max_length:
            return tokens
        return [*tokens[: self.max_length - 1], self.vocabulary.end]


def is_visible(text: str) -> bool:
    """Return whether a text has a character to see: no space, control or format character."""
    return any(not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf") for c in text)


def score_directions(
    translator: TextTranslator,
    texts: Mapping[Direction, Sequence[tuple[str, str]]],
    progress: Progress,
) -> tuple[dict[Direction, TranslationScores], dict[Direction, list[str]]]:
    """Translate and score sentences of each direction.

    Args:
        translator: Of the model.
        texts: Sentences and their references.
        progress: Shows it.

    Returns:
        Scores and translations of each direction.
    """
    scores: dict[Direction, TranslationScores] = {}
    written: dict[Direction, list[str]] = {}
    for direction, pairs in texts.items():
        what = f"translating {'-'.join(direction)}"
        sources = [source for source, _ in pairs]

        def show(done: int, what: str = what, total: int = len(sources)) -> None:
            progress.update(what, done, total)

        found = translator.translate(sources, direction[1], progress=show)
        progress.update(what, len(sources), len(sources))
        written[direction] = [each.texts[0] for each in found]
        scores[direction] = score_translations(written[direction], [r for _, r in pairs])
    return scores, written
