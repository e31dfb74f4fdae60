"""Translation of texts, and BLEU and chrF by sacreBLEU."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from magneto.files import import_extra
from magneto.progress import Progress
from magneto.translation.model import TranslationModel
from magneto.translation.prepare import LanguagePair, TranslationVocabulary

_COLUMNS = "  {:<22}{:>10}{:>8}{:>8}"


@dataclass(frozen=True)
class TranslationScores:
    """Corpus scores of a set of translations.

    Attributes:
        bleu: BLEU from 0 to 100 of cased, detokenised text (sacreBLEU's 13a, "exp" smoothing).
        chrf: chrF2 from 0 to 100 (character 6-grams).
        sentences: Number of sentences.
    """

    bleu: float
    chrf: float
    sentences: int


def score_translations(translations: Sequence[str], references: Sequence[str]) -> TranslationScores:
    """Score translations against one reference each; ValueError if there are none."""
    if len(translations) != len(references):
        raise ValueError(
            f"{len(translations)} translations and {len(references)} references: give as many"
        )
    if not translations:
        raise ValueError("no translations to score")
    metrics = import_metrics()
    bleu = metrics.BLEU().corpus_score(list(translations), [list(references)])
    chrf = metrics.CHRF().corpus_score(list(translations), [list(references)])
    return TranslationScores(bleu.score, chrf.score, len(translations))


def import_metrics() -> Any:
    return import_extra("sacrebleu", "text", "scoring needs sacrebleu").metrics


def signatures() -> dict[str, str]:
    metrics = import_metrics()
    used = {"bleu": metrics.BLEU(), "chrf": metrics.CHRF()}
    for metric in used.values():
        metric.corpus_score(["a"], [["a"]])  # the signature names the number of references
    return {name: str(metric.get_signature()) for name, metric in used.items()}


def average_directions(
    values: Mapping[LanguagePair, float], pivot_language: str
) -> dict[str, float]:
    """Average a score over directions, with equal weight for each direction.

    Returns:
        The averages of the paper's table. "out" averages the directions from the pivot language (En
        -> X) and "into" the directions into it. "both" is the mean of "out" and "into". An average
        without directions is NaN.
    """
    sides = {
        name: [value for direction, value in values.items() if direction[end] == pivot_language]
        for name, end in (("out", 0), ("into", 1))
    }
    means = {name: fmean(found) if found else math.nan for name, found in sides.items()}
    return {**means, "both": (means["out"] + means["into"]) / 2}


def describe_scores(
    split: str, scores: dict[LanguagePair, TranslationScores], pivot: str
) -> dict[str, Any]:
    """Return scores by direction, averages and signatures, for JSON."""
    result: dict[str, Any] = {"split": split, "pivot_language": pivot}
    for name in ("bleu", "chrf"):
        values = {direction: getattr(each, name) for direction, each in scores.items()}
        result[name] = {"-".join(direction): value for direction, value in values.items()}
        result[f"{name}_average"] = average_directions(values, pivot)
    result["sentences"] = {"-".join(d): each.sentences for d, each in scores.items()}
    result["signatures"] = signatures()
    return result


def score_lines(result: dict[str, Any], scores: dict[LanguagePair, TranslationScores]) -> list[str]:
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
            if not math.isnan(bleu):
                lines.append(_COLUMNS.format(f"mean {name}", "", f"{bleu:.2f}", f"{chrf:.2f}"))
    lines += [f"  {name}: {text}" for name, text in result["signatures"].items()]
    return lines


@dataclass(frozen=True)
class TranslationResult:
    """Translations of one text, best first; one empty text for an empty source.

    Scores are log-probabilities divided by length, and empty unless requested. A `truncated` source
    was cut to the maximum length.
    """

    texts: list[str]
    scores: list[float]
    truncated: bool = False


class TextTranslator:
    """Translator of texts in batches of similar length; results keep the order of the texts.

    Args:
        model: Translation model in evaluation mode, on its device.
        vocabulary: Tokenizer and tags of the model.
        max_length: Maximum source length in tokens, with tag and end token.
        search: A `magneto.hf.BeamSearch`.

    Raises:
        ModuleNotFoundError: If transformers is not installed.
    """

    def __init__(
        self,
        model: TranslationModel,
        vocabulary: TranslationVocabulary,
        max_length: int,
        search: Any,
    ) -> None:
        from magneto.hf import Translator

        if model.config.positions == "learned":  # no further positions exist
            max_length = min(max_length, model.config.max_length)
            search = replace(search, longest=min(search.longest, model.config.max_length - 1))
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.count: int = search.count
        self.translator: Any = Translator.of(model, vocabulary.end, search)

    def translate(
        self,
        texts: Sequence[str],
        language: str,
        scored: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[TranslationResult]:
        """Translate texts into a language, with scores if asked for.

        The translation of a text without visible characters is empty. `progress` is called with the
        number of finished non-empty texts.

        Raises:
            ValueError: If the vocabulary lacks the language. The message suggests the nearest.
        """
        nonempty = [number for number, text in enumerate(texts) if is_visible(text)]
        sources = self.vocabulary.encode_source([texts[number] for number in nonempty], language)
        truncated = [len(tokens) > self.max_length for tokens in sources]
        sources = [
            [*tokens[: self.max_length - 1], self.vocabulary.end] if long else tokens
            for tokens, long in zip(sources, truncated, strict=True)
        ]
        found = self.translator.search(sources, progress)
        scores = self.translator.score(sources, found) if scored else [[] for _ in found]
        empty_scores = [0.0] * self.count * scored
        results = [TranslationResult([""] * self.count, empty_scores) for _ in texts]
        for place, number in enumerate(nonempty):
            translations = [self.vocabulary.decode(tokens) for tokens in found[place]]
            results[number] = TranslationResult(translations, scores[place], truncated[place])
        return results

    def translate_pairs(
        self, direction: LanguagePair, texts: Sequence[tuple[str, str]]
    ) -> tuple[LanguagePair, list[tuple[str, str]]]:
        """Return the direction, and for each of `texts` its translation and its reference."""
        results = self.translate([source for source, _ in texts], direction[1])
        pairs = zip(results, texts, strict=True)
        return direction, [(each.texts[0], reference) for each, (_, reference) in pairs]


def is_visible(text: str) -> bool:
    """Whether a text has a character other than spaces, control and format characters."""
    return any(not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf") for c in text)


def score_directions(
    translator: TextTranslator,
    texts: Mapping[LanguagePair, Sequence[tuple[str, str]]],
    progress: Progress,
) -> tuple[dict[LanguagePair, TranslationScores], dict[LanguagePair, list[str]]]:
    """Translate sentences with references; return scores and translations of each direction."""
    scores: dict[LanguagePair, TranslationScores] = {}
    written: dict[LanguagePair, list[str]] = {}
    for direction, pairs in texts.items():
        sources, references = map(list, zip(*pairs, strict=True))
        show = partial(progress.update, f"translating {'-'.join(direction)}", total=len(sources))
        results = translator.translate(sources, direction[1], progress=show)
        show(len(sources))
        written[direction] = [each.texts[0] for each in results]
        scores[direction] = score_translations(written[direction], references)
    return scores, written
