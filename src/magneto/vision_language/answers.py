"""Answers to questions: VQA's official accuracy, the answer list, and training targets.

**Accuracy.** Each annotator is left out once, and the answer is compared with the remaining
annotators' answers. Each equal answer adds 1/3 to the score, which is at most 1. The accuracy is
the mean of the scores. If n of ten annotators gave the answer, the accuracy is 0.3n, but at most 1.

**Normalisation.** Answers are normalised before the comparison, either for all questions or only
for questions on which the annotators disagree (the official rule). By the official rule, if all
annotators give the same answer, only a prediction with exactly this spelling is right.
Normalisation changes an answer as follows. Punctuation and articles are removed. Letters become
lower case. Number words become digits. A missing apostrophe is inserted into a contraction ("dont"
becomes "don't"). The rules are those of the official evaluation code (GT-Vision-Lab/VQA, commit
a013f00).

Some rules of the official normalisation have surprising results. If the answer has a comma between
two digits, all marks in `PUNCTUATION` are removed. In other answers, all hyphens are removed if one
of them is beside a space. Otherwise, every hyphen becomes a space. The other marks in `PUNCTUATION`
are treated like hyphens. A full stop is removed unless a digit follows, but only the first 32 full
stops are removed. The number word "none" becomes "0".

**Answer list.** VQA v2's list has 3129 answers. Each answer in the list is the majority answer to
at least nine questions of the training and validation splits. Majority answers are normalised
before they are counted. Answers are listed in the order of first occurrence, as in the heads of
released checkpoints.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from magneto.data.files import existing_path
from magneto.data.problems import guarded
from magneto.files import import_extra
from magneto.vision_language.config import Lookup, When

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
COMMA_IN_NUMBER = re.compile(r"\d,\d")
FULL_STOP = re.compile(r"\.(?!\d)")
# The official code passes a flag with the value 32 as the number of replacements.
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
"""Contractions. For example, "dont" is normalised to "don't"."""

# Number of other annotators with the same answer that make it right.
ENOUGH = 3
ANNOTATORS = 10
"""Number of annotators of a question. If a question has only one answer, all annotators count as
having given this answer."""
# Target of an answer by the number of annotators who gave it: its accuracy.
CREDIT = (0.0, 0.3, 0.6, 0.9, 1.0)


CONTRACTIONS = {
    **{
        word[:i] + word[i + 1 :]: word
        for word in CONTRACTED
        for i, letter in enumerate(word)
        if letter == "'"
    },
    "somebody'd": "somebodyd",  # reversed in the official table
}


@lru_cache(maxsize=1 << 18)
def normalise_answer(answer: str) -> str:
    """Normalise an answer by the official rules (see the module docstring)."""
    joined = COMMA_IN_NUMBER.search(answer) is not None
    found = answer
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in answer or f" {mark}" in answer
        found = found.replace(mark, "" if joined or beside_space else " ")
    found = FULL_STOP.sub("", found, count=MOST_FULL_STOPS)
    words = [NUMBER_WORDS.get(word, word) for word in found.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def question_accuracy(
    answer: str, annotators: Sequence[str], when: When = "where_annotators_disagree"
) -> float:
    answer, known = tidy(answer), [tidy(one) for one in annotators]
    if when == "always" or len(set(known)) > 1:
        answer, known = normalise_answer(answer), [normalise_answer(one) for one in known]
    if not known:
        return 0.0
    matches = known.count(answer)
    left_out_agrees = min(1.0, max(matches - 1, 0) / ENOUGH)
    left_out_differs = min(1.0, matches / ENOUGH)
    return (matches * left_out_agrees + (len(known) - matches) * left_out_differs) / len(known)


def answerable(
    questions: Iterable[Sequence[str]], known: Iterable[str], when: When
) -> Iterator[bool]:
    """Yield for each question whether an answer in `known` scores above 0."""
    written = {tidy(answer) for answer in known}
    normalised = {normalise_answer(answer) for answer in written}
    for annotators in questions:
        given = {tidy(one) for one in set(annotators)}
        if when == "always" or len(given) > 1:
            right = not normalised.isdisjoint(map(normalise_answer, given))
        else:
            right = not written.isdisjoint(given)
        yield right and len(annotators) > 1  # a single annotator has no other who agrees


def tidy(answer: str) -> str:
    return answer.replace("\n", " ").replace("\t", " ").strip()


def answer_scores(
    answers: Sequence[Sequence[str]],
    kinds: Sequence[str],
    given: Sequence[str | None],
    when: When,
) -> dict[str, float]:
    """Return the mean official accuracy over all questions, and over the questions of each type.

    An answer of None scores 0.
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


def known_answers(majorities: Iterable[str], least: int) -> list[str]:
    """Return normalised answers that occur at least `least` times, in order of first occurrence."""
    counts = Counter(normalise_answer(answer) for answer in majorities)
    return [answer for answer, count in counts.items() if count >= least]


def for_lookup(annotators: Sequence[str], lookup: Lookup) -> Sequence[str]:
    return annotators if lookup == "raw" else [normalise_answer(one) for one in annotators]


def share_known(questions: Iterable[Sequence[str]], known: Iterable[str], lookup: Lookup) -> float:
    """Return the share of annotators' answers that are in the list `known` (0 without answers)."""
    answers, total, found = {*known}, 0, 0
    for annotators in questions:
        total += len(annotators)
        found += sum(word in answers for word in for_lookup(annotators, lookup))
    return found / max(total, 1)


def read_answers(name: str) -> list[str]:
    """Read an answer list from a file.

    The file may be a JSON list, or have one answer in each line. The file may also be BEiT-3's
    answer2label.txt, whose lines are JSON objects with "answer" and "label".

    Raises:
        ValueError: If the list is empty or has duplicates, or if labels are not 0, 1, 2 and so on.
    """
    path = existing_path(name)
    with guarded(prefix=f"{path} is not an answer list: "):
        text = path.read_text(encoding="utf-8-sig")
        found = json.loads(text) if text.lstrip().startswith("[") else _lines(text)
    if not found or not all(isinstance(answer, str) for answer in found):
        raise ValueError(
            f"{path} is not an answer list: it is empty or has an item that is not a text"
        )
    twice = [answer for answer, count in Counter(found).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has the answer {twice[0]!r} twice: list each answer once")
    return found


def _lines(text: str) -> list[Any]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("{"):
        return lines
    rows = [json.loads(line) for line in lines]
    if [int(row["label"]) for row in rows] != list(range(len(rows))):
        raise ValueError("the labels are not 0, 1, 2 and so on")
    return [row["answer"] for row in rows]


def gather_targets(
    questions: Sequence[Sequence[str]], answers: Sequence[str], lookup: Lookup
) -> Any:
    """Return the training targets: the official accuracy of each listed answer to each question.

    The result is a `scipy.sparse.csr_array`, float32 (questions, answers).
    """
    sparse = import_extra("scipy.sparse", "vision", "the training targets need scipy")
    order = {answer: number for number, answer in enumerate(answers)}
    found: list[dict[int, float]] = []
    for annotators in questions:
        counts = Counter(for_lookup(annotators, lookup))
        found.append({order[answer]: CREDIT[min(count, len(CREDIT) - 1)]
                      for answer, count in counts.items() if answer in order})  # fmt: skip
    starts = np.cumsum([0, *map(len, found)], dtype=np.int64)
    numbers = np.array([number for one in found for number in one], np.int64)
    credits = np.array([credit for one in found for credit in one.values()], np.float32)
    return sparse.csr_array((credits, numbers, starts), shape=(len(found), len(answers)))


def question_only_answers(texts: Sequence[str], targets: Any, asked: Sequence[str]) -> np.ndarray:
    """Answer the questions `asked` with a question-only baseline.

    The result is the index of each answer in the answer list, int64 (len(asked),). `texts` are the
    training questions, and `targets` are the targets of the training questions. The baseline looks
    for training questions with the same text as the asked question, and chooses the answer with the
    highest sum of targets over these questions. If no training question has the same text, all
    training questions are used.
    """
    sparse = import_extra("scipy.sparse", "vision", "the question-only baseline needs scipy")
    different = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    same = [different[text] for text in texts], np.arange(len(texts))
    shape = len(different), len(texts)
    sums = sparse.csr_array((np.ones(len(texts)), same), shape=shape) @ targets
    best, overall = sums.argmax(1), sums.sum(0).argmax()
    return np.array(
        [best[different[text]] if text in different else overall for text in asked], np.int64
    )
