"""How good translations are: sacreBLEU's BLEU and chrF, and the averages of the paper's table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magneto.files import import_extra

_COLUMNS = "  {:<22}{:>10}{:>8}{:>8}"
Direction = tuple[str, str]
"""From which language to which."""


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


@dataclass(frozen=True)
class DirectionAverages:
    """Unweighted means over directions, as in the paper's table; NaN where there is none.

    Attributes:
        out: From the language in the middle into the others (En -> X).
        into: From the others into it (X -> En).
        both: The mean of the two.
    """

    out: float
    into: float
    both: float


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
    library = import_sacrebleu()
    answers = [list(references)]
    bleu = library.metrics.BLEU().corpus_score(list(translations), answers)
    chrf = library.metrics.CHRF().corpus_score(list(translations), answers)
    return TranslationScores(bleu.score, chrf.score, len(translations))


def signatures() -> dict[str, str]:
    """Return sacreBLEU's signatures of the two scores, by which others can repeat them."""
    library = import_sacrebleu()
    found = {}
    for name, kind in (("bleu", library.metrics.BLEU), ("chrf", library.metrics.CHRF)):
        metric = kind()
        metric.corpus_score(["a"], [["a"]])  # the signature names the number of references
        found[name] = str(metric.get_signature())
    return found


def average_directions(values: Mapping[Direction, float], pivot_language: str) -> DirectionAverages:
    """Average a score over directions, each counting the same however many sentences it has.

    Args:
        values: Score of each direction. Those without `pivot_language` are left out.
        pivot_language: The language in the middle.
    """
    out = _mean([value for (source, _), value in values.items() if source == pivot_language])
    into = _mean([value for (_, target), value in values.items() if target == pivot_language])
    return DirectionAverages(out, into, (out + into) / 2)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def import_sacrebleu() -> Any:
    """Import sacrebleu, or say which extra has it."""
    return import_extra("sacrebleu", "text", "scoring needs sacrebleu")


def describe_scores(
    split: str, scores: dict[Direction, TranslationScores], pivot: str
) -> dict[str, Any]:
    """Return the scores for a program: by direction, averages, signatures."""
    found: dict[str, Any] = {"split": split, "pivot_language": pivot}
    for name in ("bleu", "chrf"):
        values = {direction: getattr(each, name) for direction, each in scores.items()}
        mean = average_directions(values, pivot)
        found[name] = {"-".join(direction): value for direction, value in values.items()}
        found[f"{name}_average"] = {"out": mean.out, "into": mean.into, "both": mean.both}
    found["sentences"] = {"-".join(d): each.sentences for d, each in scores.items()}
    found["signatures"] = signatures()
    return found


def score_lines(result: dict[str, Any], scores: dict[Direction, TranslationScores]) -> list[str]:
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
