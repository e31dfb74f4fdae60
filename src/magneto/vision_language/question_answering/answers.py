"""The answers that a model chooses from, and what of each answer it is taught.

VQA v2's 3129 are the majority answers, normalised, that occur nine times or more in training and
validation annotations together, in the order in which they first occur: so the rows of a released
checkpoint's head are the rows of ours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from magneto.data.files import existing_path
from magneto.data.problems import guarded
from magneto.vision_language.question_answering.normalisation import normalise_answer

Lookup = Literal["raw", "normalised"]
"""How an annotator's answer is looked up among the known ones: as it is written, as BEiT-3's
released code does, although the known ones are normalised; or normalised too."""

# Target of an answer by the number of annotators who gave it: the accuracy it would have.
CREDIT = (0.0, 0.3, 0.6, 0.9, 1.0)


def known_answers(majorities: Iterable[str], least: int) -> list[str]:
    """Return the answers to choose from, in the order in which they first occur.

    Args:
        majorities: The majority answer of each annotated question.
        least: Times that an answer occurs, normalised (9 for VQA v2, which gives 3129).
    """
    counts = Counter(normalise_answer(answer) for answer in majorities)
    return [answer for answer, count in counts.items() if count >= least]


def soft_target(
    annotators: Sequence[str], numbers: Mapping[str, int], lookup: Lookup
) -> dict[int, float]:
    """Return the known answers' targets for one question; those that are not listed have 0.

    Args:
        annotators: The answers of all annotators.
        numbers: Of the known answers.
        lookup: How they are looked up.
    """
    written = annotators if lookup == "raw" else [normalise_answer(one) for one in annotators]
    counts = Counter(written)
    return {
        numbers[answer]: CREDIT[min(count, len(CREDIT) - 1)]
        for answer, count in counts.items()
        if answer in numbers
    }


def share_known(
    questions: Iterable[Sequence[str]], numbers: Mapping[str, int], lookup: Lookup
) -> float:
    """Return the share of annotators' answers that are known; 0 of none."""
    known = total = 0
    for annotators in questions:
        total += len(annotators)
        written = annotators if lookup == "raw" else map(normalise_answer, annotators)
        known += sum(answer in numbers for answer in written)
    return known / max(total, 1)


def read_answers(name: str) -> list[str]:
    """Read the answers to choose from, in order.

    Args:
        name: Path of a JSON list, as a run keeps it; of text with an answer in each line; or of
            lines of JSON with "answer" and "label" (BEiT-3's answer2label.txt).

    Raises:
        FileNotFoundError: If there is no such file; names the nearest.
        ValueError: If it holds no answers, one twice, or labels out of order.
    """
    path = existing_path(name)
    with guarded(prefix=f"{path} is no list of answers: "):
        text = path.read_text(encoding="utf-8-sig")
        found = json.loads(text) if text.lstrip().startswith("[") else _lines(text)
    if not found or not all(isinstance(answer, str) for answer in found):
        raise ValueError(f"{path} is no list of answers")
    twice = [answer for answer, count in Counter(found).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has the answer {twice[0]!r} twice")
    return found


def _lines(text: str) -> list[Any]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("{"):
        return lines
    rows = [json.loads(line) for line in lines]
    if not all({"answer", "label"} <= row.keys() for row in rows):
        raise ValueError('a line has no "answer" and "label"')
    if [int(row["label"]) for row in rows] != list(range(len(rows))):
        raise ValueError("its labels are not 0, 1, 2 and so on")
    return [row["answer"] for row in rows]
