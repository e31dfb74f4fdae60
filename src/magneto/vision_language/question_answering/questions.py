"""Questions about images, by index, wherever they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from magneto.data.cache import content_digest
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.images import UNLABELLED, ImageSplit, ImageStore
from magneto.vision_language.question_answering.normalisation import normalise_answer

# A set with one answer to each question counts as this many annotators who agree.
ANNOTATORS = 10
# What is said of a set while it is read.
QUESTIONS = "questions"
DUPLICATES = "questions whose id was there before left out"
UNANNOTATED = "questions without an annotation left out"
UNASKED = "annotations without a question left out"
EMPTY_QUESTIONS = "empty questions"
WITHOUT_IMAGE = "questions whose image is missing left out"
IMAGE_MISSING = "validation questions whose image is missing (they score 0)"
UNKNOWN_TRAINING = "training questions without a known answer left out"
UNKNOWN_VALIDATION = "validation questions without a known answer (they score 0)"


class Question(NamedTuple):
    """A question, and what the annotators answered.

    Attributes:
        number: Its id.
        image: Number of its image in the set's store.
        text: As it was asked.
        answers: One of each annotator, usually ten; none where they are not public. A set with one
            answer per question has ten who agree.
        majority: The answer that stands for all; "" where there is none.
        question_type: Its first words, in VQA v2; "" where there are no types.
        answer_type: "yes/no", "number" or "other" in VQA v2; "" where there are no types.
    """

    number: int
    image: int
    text: str
    answers: tuple[str, ...]
    majority: str
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
        images: Where their images lie.
        questions: In the order of the source.
    """

    images: ImageStore
    questions: Sequence[Question]

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def answered(self) -> bool:
        """Whether the answers are there: those of VQA v2's test sets are not public."""
        return any(question.answers for question in self.questions)

    def open(self, index: int) -> Picture:
        """Open the image of a question.

        Raises:
            BrokenImage: If it can't be read, or is no image.
        """
        try:
            return self.images.open(self.questions[index].image)
        except OSError as error:
            raise BrokenImage(f"can't be read ({error.strerror})") from error

    def chosen(self, indices: Sequence[int]) -> QuestionSplit:
        """Return some of the questions, over the same images."""
        return QuestionSplit(self.images, [self.questions[index] for index in indices])

    @cached_property
    def digest(self) -> str:
        """A short name for the content: the questions with their answers, and their images."""
        used = np.unique([question.image for question in self.questions]).astype(np.int64)
        asked = "\n".join(map(repr, self.questions)).encode("utf-8", errors="surrogatepass")
        return content_digest(asked, image_digest(self.images, used).encode())


def image_digest(images: ImageStore, numbers: np.ndarray) -> str:
    """Return a short name for the content of some images; see `ImageSplit.digest`."""
    return ImageSplit(images, numbers, np.full(len(images), UNLABELLED, np.int64)).digest
