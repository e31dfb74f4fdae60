"""VQA's official accuracy: an answer is right as far as the annotators agree with it.

Each annotator is left out once; of the others, three who gave the same answer make it wholly right.
With ten annotators, an answer that 0, 1, 2, 3 or more of them gave scores 0, 0.3, 0.6, 0.9 or 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from magneto.vision_language.question_answering.normalisation import normalise_answer

When = Literal["where_annotators_disagree", "always"]
"""When answers are normalised before they are compared.

The official evaluation does it only where the annotators disagree, on purpose: where all of them
say the same, for instance what is written on a sign, an answer must be spelt as theirs.
"""
# So many others with the same answer make it wholly right.
ENOUGH = 3


def question_accuracy(
    answer: str, annotators: Sequence[str], when: When = "where_annotators_disagree"
) -> float:
    """Return how right an answer is, 0 to 1.

    Args:
        answer: To score.
        annotators: The answers of all annotators, usually ten.
        when: Answers are normalised; "where_annotators_disagree" is the official rule.
    """
    answer, known = tidy(answer), [tidy(one) for one in annotators]
    if when == "always" or len(set(known)) > 1:
        answer, known = normalise_answer(answer), [normalise_answer(one) for one in known]
    return leave_one_out(known.count(answer), len(known))


def answerable(
    questions: Iterable[Sequence[str]], known: Iterable[str], when: When
) -> Iterator[bool]:
    """Yield whether any of the known answers scores above 0, question by question.

    Args:
        questions: The answers of all annotators to each.
        known: The answers to choose from.
        when: Answers are normalised.
    """
    written = {tidy(answer) for answer in known}
    normalised = {normalise_answer(answer) for answer in written}
    for annotators in questions:
        given = {tidy(one) for one in set(annotators)}
        if when == "always" or len(given) > 1:
            right = not normalised.isdisjoint(map(normalise_answer, given))
        else:
            right = not written.isdisjoint(given)
        yield right and len(annotators) > 1  # no other agrees with a single one


def leave_one_out(matches: int, annotators: int) -> float:
    """Return the accuracy of an answer that so many of the annotators gave; 0 of none at all."""
    if annotators == 0:
        return 0.0
    left_out_agrees = min(1.0, max(matches - 1, 0) / ENOUGH)
    left_out_differs = min(1.0, matches / ENOUGH)
    total = matches * left_out_agrees + (annotators - matches) * left_out_differs
    return total / annotators


def tidy(answer: str) -> str:
    """Make line ends and tabs spaces, and strip both ends."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def mean_by_kind(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean score of each kind, in the order of the alphabet.

    Args:
        scores: Kind and score of each question.
    """
    sums: dict[str, list[float]] = {}
    for kind, score in scores:
        sums.setdefault(kind, []).append(score)
    return {kind: sum(found) / len(found) for kind, found in sorted(sums.items())}


def percentages(accuracies: Mapping[str, float]) -> dict[str, float]:
    """Return accuracies as the official evaluation prints them: times 100, two decimals."""
    return {kind: round(100 * value, 2) for kind, value in accuracies.items()}
