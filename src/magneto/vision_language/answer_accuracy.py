"""VQA's official accuracy: an answer is right as far as the annotators agree with it.

Each annotator is left out once; of the others, three who gave the same answer make it wholly right.
With ten annotators, an answer that 0, 1, 2, 3 or more of them gave scores 0, 0.3, 0.6, 0.9 or 1.

Before an answer is compared with another, punctuation goes, letters become small, number words
become digits, articles go, and contractions get their apostrophes. The rules are those of the
evaluation code that VQA's authors publish (GT-Vision-Lab/VQA, commit a013f00), with what is odd in
them, so that scores are comparable:

- A mark of punctuation becomes a space, or nothing if it stands beside a space anywhere in the
  answer; all marks become nothing if the answer has a comma between two digits.
- A full stop goes unless a digit follows it ("1.5" stays, "1." becomes "1"); of more than 32 of
  them, the first 32.
- "none" is a number word: it becomes "0".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
COMMA_IN_NUMBER = re.compile(r"\d,\d")
FULL_STOP = re.compile(r"\.(?!\d)")
# The official code passes a flag, whose value is 32, where the number of replacements belongs.
MOST_FULL_STOPS = 32
NUMBER_WORDS = {
    "none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5",
    "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10",
}  # fmt: skip
ARTICLES = {"a", "an", "the"}
CONTRACTED = re.findall(
    r"\S+",
    """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
    haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
    might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
    shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
    someone's something'd something'd've something'll that's there'd there'd've there're there's
    they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're
    what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're
    why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're
    you've
""",
)
"""Words whose spelling with one apostrophe left out is mended."""

When = Literal["where_annotators_disagree", "always"]
"""When answers are normalised before they are compared.

The official evaluation does it only where the annotators disagree, on purpose: where all of them
say the same, for instance what is written on a sign, an answer must be spelt as theirs.
"""
# So many others with the same answer make it wholly right.
ENOUGH = 3
NO_ANSWER = -1
"""In place of an answer's number where the image could not be read: it scores 0."""


def without_one_apostrophe(word: str) -> list[str]:
    """Return a word's spellings with one of its apostrophes left out."""
    return [word[:i] + word[i + 1 :] for i, letter in enumerate(word) if letter == "'"]


CONTRACTIONS = {
    **{spelt: word for word in CONTRACTED for spelt in without_one_apostrophe(word)},
    "somebody'd": "somebodyd",  # the official table has this one the wrong way round
}


@lru_cache(maxsize=1 << 18)
def normalise_answer(answer: str) -> str:
    """Return an answer as the official evaluation compares it."""
    return normalise_words(strip_punctuation(answer))


def strip_punctuation(answer: str) -> str:
    """Take out punctuation; see the rules above."""
    joined = COMMA_IN_NUMBER.search(answer) is not None
    found = answer
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in answer or f" {mark}" in answer
        found = found.replace(mark, "" if joined or beside_space else " ")
    return FULL_STOP.sub("", found, count=MOST_FULL_STOPS)


def normalise_words(answer: str) -> str:
    """Make letters small and number words digits, leave articles out, mend contractions."""
    words = [NUMBER_WORDS.get(word, word) for word in answer.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


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


def answer_scores(
    answers: Sequence[Sequence[str]],
    kinds: Sequence[str],
    given: Sequence[str | None],
    when: When,
) -> dict[str, float]:
    """Return the official accuracy of all questions, and of each type of answer.

    Args:
        answers: Of the annotators of each question; without them there is nothing to score.
        kinds: Type of the answer to each; "" where there is none.
        given: An answer to each; None scores 0.
        when: Answers are normalised.
    """
    scores = [
        0.0 if answer is None else question_accuracy(answer, annotators, when)
        for annotators, answer in zip(answers, given, strict=True)
    ]
    by_kind: dict[str, list[float]] = {"": scores}
    for kind, score in zip(kinds, scores, strict=True):
        if kind:
            by_kind.setdefault(f"_{kind.replace('/', '_')}", []).append(score)
    return {f"accuracy{kind}": float(np.mean(by_kind[kind])) for kind in sorted(by_kind)}


def summary(
    sums: Mapping[str, Any],
    answers: Sequence[Sequence[str]],
    kinds: Sequence[str],
    given: Sequence[str | None],
    when: When,
) -> dict[str, float]:
    """Return the metrics of scored questions.

    "soft_score" is what BEiT-3's released code validates by: the target of the answer that was
    given, which depends on how answers are looked up. "unknown" is the share of questions for which
    every known answer scores 0 by this metric: nobody can answer them out of the list.

    Args:
        sums: Of "loss", "soft_score", "unknown", "broken" and "count".
        answers: Of the annotators of each question that was asked.
        kinds: Type of the answer to each.
        given: An answer to each, or None.
        when: Answers are normalised.
    """
    count = sums["count"]
    if not any(answers):
        return {"questions": float(count), "broken": sums["broken"]}
    shares = {name: sums[name] / count for name in ("loss", "soft_score", "unknown")}
    return {**answer_scores(answers, kinds, given, when), **shares, "broken": sums["broken"]}
