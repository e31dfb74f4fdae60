"""Translate texts with a model, and say how good translations are: sacreBLEU's BLEU and chrF."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from magneto.files import import_extra
from magneto.progress import Progress
from magneto.translation.model import TranslationModel
from magneto.translation.prepare import Pair, TranslationVocabulary

_COLUMNS = "  {:<22}{:>10}{:>8}{:>8}"


@dataclass(frozen=True)
class TranslationScores:
    """What one set of translations scores.

    Attributes:
        bleu: 0 to 100: cased, detokenised text, tokenised by sacreBLEU's 13a, smoothed "exp".
        chrf: 0 to 100: character 6-grams, recall counting twice (beta 2).
        sentences: How many it is over.
    """

    bleu: float
    chrf: float
    sentences: int


def score_translations(translations: Sequence[str], references: Sequence[str]) -> TranslationScores:
    """Score translations against one reference each.

    Raises:
        ValueError: If there are none, or not as many references.
        ModuleNotFoundError: If sacrebleu is not installed.
    """
    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations and {len(references)} references")
    if not translations:
        raise ValueError("nothing to score: there are no translations")
    metrics = import_metrics()
    answers = [list(references)]
    bleu = metrics.BLEU().corpus_score(list(translations), answers)
    chrf = metrics.CHRF().corpus_score(list(translations), answers)
    return TranslationScores(bleu.score, chrf.score, len(translations))


def import_metrics() -> Any:
    """Import sacrebleu's metrics, or say which extra has them."""
    return import_extra("sacrebleu", "text", "scoring needs sacrebleu").metrics


def signatures() -> dict[str, str]:
    """Return sacreBLEU's signatures of the two scores, by which others can repeat them."""
    metrics = import_metrics()
    made = {"bleu": metrics.BLEU(), "chrf": metrics.CHRF()}
    for metric in made.values():
        metric.corpus_score(["a"], [["a"]])  # the signature names the number of references
    return {name: str(metric.get_signature()) for name, metric in made.items()}


def average_directions(values: Mapping[Pair, float], pivot_language: str) -> dict[str, float]:
    """Average a score over directions, each counting the same however many sentences it has.

    Args:
        values: Score of each direction. Those without `pivot_language` are left out.
        pivot_language: The language in the middle.

    Returns:
        The means of the paper's table: "out" of the language in the middle (En -> X), "into" it,
        and "both", their mean; NaN where there is no such direction.
    """
    sides = {
        name: [value for direction, value in values.items() if direction[end] == pivot_language]
        for name, end in (("out", 0), ("into", 1))
    }
    means = {name: fmean(found) if found else math.nan for name, found in sides.items()}
    return {**means, "both": (means["out"] + means["into"]) / 2}


def describe_scores(
    split: str, scores: dict[Pair, TranslationScores], pivot: str
) -> dict[str, Any]:
    """Return the scores for a program: by direction, averages, signatures."""
    found: dict[str, Any] = {"split": split, "pivot_language": pivot}
    for name in ("bleu", "chrf"):
        values = {direction: getattr(each, name) for direction, each in scores.items()}
        found[name] = {"-".join(direction): value for direction, value in values.items()}
        found[f"{name}_average"] = average_directions(values, pivot)
    found["sentences"] = {"-".join(d): each.sentences for d, each in scores.items()}
    found["signatures"] = signatures()
    return found


def score_lines(result: dict[str, Any], scores: dict[Pair, TranslationScores]) -> list[str]:
    """Return the scores as a table."""
    lines = [f"{result['weights']} on {result['data']} ({result['split']}):"]
    lines += [
        f"  {name:<16}{result[name]:.4f}" for name in ("loss", "perplexity") if name in result
    ]
    lines.append(_COLUMNS.format("direction", "sentences", "BLEU", "chrF"))
    lines += [
        _COLUMNS.format("-".join(direction), each.sentences, f"{each.bleu:.2f}", f"{each.chrf:.2f}")
        for direction, each in scores.items()
    ]
    if len(scores) > 1:
        pivot = result["pivot_language"]
        for key, name in (("out", f"{pivot}->X"), ("into", f"X->{pivot}"), ("both", "average")):
            bleu, chrf = (result[f"{metric}_average"][key] for metric in ("bleu", "chrf"))
            if bleu == bleu:  # there is such a direction
                lines.append(_COLUMNS.format(f"mean {name}", "", f"{bleu:.2f}", f"{chrf:.2f}"))
    lines += [f"  {name}: {text}" for name, text in result["signatures"].items()]
    return lines


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
        sources = [
            [*tokens[: self.max_length - 1], self.vocabulary.end] if is_cut else tokens
            for tokens, is_cut in zip(sources, cut, strict=True)
        ]
        found = self.translator.search(sources, progress)
        scores = self.translator.score(sources, found) if scored else [[] for _ in found]
        made = [Translated([""] * self.count, [0.0] * self.count * scored) for _ in texts]
        for place, number in enumerate(full):
            written = [self.vocabulary.decode(tokens) for tokens in found[place]]
            made[number] = Translated(written, scores[place], cut[place])
        return made

    def answers(
        self, direction: Pair, texts: Sequence[tuple[str, str]]
    ) -> tuple[Pair, list[tuple[str, str]]]:
        """Return a direction and, for each of its sentences, the translation and the reference."""
        found = self.translate([source for source, _ in texts], direction[1])
        pairs = zip(found, texts, strict=True)
        return direction, [(each.texts[0], reference) for each, (_, reference) in pairs]


def is_visible(text: str) -> bool:
    """Return whether a text has a character to see: no space, control or format character."""
    return any(not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf") for c in text)


def score_directions(
    translator: TextTranslator,
    texts: Mapping[Pair, Sequence[tuple[str, str]]],
    progress: Progress,
) -> tuple[dict[Pair, TranslationScores], dict[Pair, list[str]]]:
    """Translate sentences with references; return scores and translations of each direction."""
    scores: dict[Pair, TranslationScores] = {}
    written: dict[Pair, list[str]] = {}
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
