"""Questions about images, by index, wherever they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from magneto.data.cache import content_digest
from magneto.data.media import MediaColumn
from magneto.data.problems import DataProblems
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.images import BROKEN, ImageSplit, images_of
from magneto.vision_language.question_answering.normalisation import normalise_answer

# What is said of a set while it is read.
DUPLICATES = "questions whose id was there before left out"
ANNOTATED_TWICE = "further annotations of a question left out"
UNANNOTATED = "questions without an annotation left out"
UNASKED = "annotations without a question left out"
EMPTY_QUESTIONS = "empty questions"
WITHOUT_IMAGE = "training questions whose image is missing left out"
IMAGE_MISSING = "validation questions whose image is missing (they score 0)"
UNKNOWN_TRAINING = "training questions none of whose answers the look-up knows left out"
UNKNOWN_VALIDATION = "validation questions that no known answer is right for (they score 0)"

ANNOTATORS = 10
"""A set with one answer to each question counts as so many annotators who agree."""


class Question(NamedTuple):
    """A question, and what the annotators answered.

    Attributes:
        number: Its id.
        image: Number of its image in the set's store.
        text: As it was asked.
        answers: One of each annotator, usually ten; none where they are not public.
        majority: The answer that stands for all; "" where there is none.
        question_type: Its first words, in VQA v2; "" where there are no types.
        answer_type: "yes/no", "number" or "other"; "" where there are no answers.
    """

    number: int
    image: int
    text: str
    answers: tuple[str, ...] = ()
    majority: str = ""
    question_type: str = ""
    answer_type: str = ""


def with_one_answer(number: int, image: int, text: str, answer: str) -> Question:
    """Return a question of a set that has one answer to each: all annotators agree."""
    kind = "number" if normalise_answer(answer).isdigit() else "other"
    kind = "yes/no" if answer in ("yes", "no") else kind
    return Question(number, image, text, (answer,) * ANNOTATORS, answer, "", kind)


@dataclass(frozen=True)
class QuestionSplit:
    """Questions of a split, by index: 0 to `len(split) - 1`.

    Attributes:
        store: Where their images lie.
        questions: In the order of the source.
        problems: Told of images that are not read as they should be.
    """

    store: MediaColumn
    questions: Sequence[Question]
    problems: DataProblems = field(default_factory=DataProblems)

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def answered(self) -> bool:
        """Whether the answers are there: those of VQA v2's test sets are not public."""
        return any(question.answers for question in self.questions)

    @property
    def missing(self) -> np.ndarray:
        """Whether each question's image is missing, boolean (questions,)."""
        return (self.store.sizes() < 0)[[question.image for question in self.questions]]

    @cached_property
    def images(self) -> ImageSplit:
        """All images of the store, by their numbers."""
        return images_of(self.store, problems=self.problems)

    def image_name(self, index: int) -> str:
        """Return where the image of a question lies, or should, for messages."""
        return self.store.name(self.questions[index].image)

    def broken(self, index: int, error: BrokenImage) -> None:
        """Note that a question's image is broken or missing."""
        self.problems.met(BROKEN, self.image_name(index), str(error))

    def open(self, index: int) -> Picture:
        """Open the image of a question.

        Raises:
            BrokenImage: If it can't be read, or is no image.
        """
        return self.images.open(self.questions[index].image)

    def chosen(self, indices: Sequence[int] | np.ndarray) -> QuestionSplit:
        """Return some of the questions, over the same images."""
        return replace(self, questions=[self.questions[int(index)] for index in indices])

    def image_keys(self) -> list[str]:
        """Return what the images that are asked about are called within the set, in order."""
        used = sorted({question.image for question in self.questions})
        return [self.store.key(number) for number in used]

    @cached_property
    def digest(self) -> str:
        """A short name for the content: the questions with their answers, and their images."""
        asked = "\n".join(map(repr, self.questions)).encode("utf-8", errors="surrogatepass")
        used = np.unique([question.image for question in self.questions]).astype(np.int64)
        images = images_of(self.store, used)
        return content_digest(asked, images.digest.encode())
