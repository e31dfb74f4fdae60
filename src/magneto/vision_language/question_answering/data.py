"""Questions ready to be taught: the known answers chosen, targets made, what is odd counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magneto.data.counts import Counts
from magneto.vision_language.question_answering.answers import (
    known_answers,
    read_answers,
    share_known,
)
from magneto.vision_language.question_answering.config import QuestionAnsweringDataConfig
from magneto.vision_language.question_answering.metric import answerable
from magneto.vision_language.question_answering.questions import (
    UNKNOWN_TRAINING,
    UNKNOWN_VALIDATION,
    QuestionSplit,
)
from magneto.vision_language.question_answering.sources import QuestionSplits, read_source
from magneto.vision_language.question_answering.targets import Targets, gather_targets


@dataclass(frozen=True)
class PreparedQuestions:
    """What a configuration names.

    Attributes:
        train: Those that have a known answer.
        train_targets: Of these.
        validation: All of them; one that no known answer is right for scores 0.
        validation_targets: Of these.
        answerable: Whether a known answer scores above 0, boolean (validation questions,).
        answers: That are known, in the order of their numbers.
        shares_known: Share of the annotators' answers in training that are known by the look-up
            "raw" and by the look-up "normalised".
        missing: Names of images that training questions are about and that are not there.
        counts: What was met.
    """

    train: QuestionSplit
    train_targets: Targets
    validation: QuestionSplit
    validation_targets: Targets
    answerable: np.ndarray
    answers: list[str]
    shares_known: tuple[float, float]
    missing: Sequence[str]
    counts: Counts

    def describe(self) -> str:
        """Say how much there is, what was odd, and what the two look-ups know."""
        if not self.validation.answered:
            alone = {"questions without public answers": len(self.validation),
                     "answers to choose from": len(self.answers)}  # fmt: skip
            return self.counts.beside(alone)
        parts = {
            "training questions": len(self.train),
            "validation questions": len(self.validation),
            "answers": len(self.answers),
        }
        raw, normalised = self.shares_known
        counted = self.counts.beside(parts)
        return (f"{counted}; of the annotators' answers the raw look-up knows {raw:.2%}, the "
                f"normalised one {normalised:.2%}")  # fmt: skip


def prepare_questions(config: QuestionAnsweringDataConfig) -> PreparedQuestions:
    """Read a source, choose the known answers, make the targets.

    Of a split without public answers nothing is read to train on.

    Raises:
        FileNotFoundError: If there is no such path, or a file of it is missing.
        ValueError: If nothing is left to train on, or there are no answers to choose from.
    """
    found, lookup = read_source(config), config.answer_lookup
    answers = choose_answers(config, found)
    targets = gather_targets(found.train, answers, lookup)
    held = gather_targets(found.validation, answers, lookup)
    taught = np.flatnonzero(targets.known)
    if found.validation.answered and (not len(taught) or len(answers) < 2):
        raise ValueError(f"{config.source}: {too_few(config, found, answers, len(taught))}")
    counts = Counts(found.counts)
    counts[UNKNOWN_TRAINING] += len(found.train) - len(taught)
    judged = [question.answers for question in found.validation.questions]
    can = np.fromiter(answerable(judged, answers, config.normalise_answers), bool)
    counts[UNKNOWN_VALIDATION] += int((~can).sum()) if found.validation.answered else 0
    order = {answer: number for number, answer in enumerate(answers)}
    asked = [question.answers for question in found.train.questions]
    shares = share_known(asked, order, "raw"), share_known(asked, order, "normalised")
    train = found.train.chosen(taught)
    return PreparedQuestions(
        train, gather_targets(train, answers, lookup), found.validation, held, can, answers,
        shares, found.missing, counts,
    )  # fmt: skip


def too_few(
    config: QuestionAnsweringDataConfig, found: QuestionSplits, answers: Sequence[str], taught: int
) -> str:
    """Return why nothing can be learnt from questions, and what to set if that helps."""
    different = known_answers(found.majorities, 1)
    if config.answers is None and len(different) == 1:
        return (f"all questions have the same answer, {different[0]!r}; a model that chooses among "
                "answers needs questions with two or more")  # fmt: skip
    return (f"{len(answers)} answers are known, and {taught} of {len(found.train)} questions have "
            "one of them: set data.least_answer_count or data.answers")  # fmt: skip


def without_answers(split: str) -> str:
    """Return why a split can't be trained with, for a message."""
    return (f"{split} has no public answers to validate on: train with data.validation_split "
            "held_out")  # fmt: skip


def choose_answers(config: QuestionAnsweringDataConfig, found: QuestionSplits) -> list[str]:
    """Return the answers to choose from: those given, or listed, or by the rule of VQA v2.

    Raises:
        ValueError: If none are given, and the split that is read has none.
    """
    if config.answers is not None:
        return read_answers(config.answers)
    if not found.validation.answered:
        raise ValueError(without_answers(config.validation_split))
    return list(found.answers) or known_answers(found.majorities, config.least_answer_count)
