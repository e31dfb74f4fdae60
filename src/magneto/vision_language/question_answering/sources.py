"""Training and validation questions of a source: VQA v2, or built-in scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from magneto.data.counts import Counts
from magneto.data.files import existing_path
from magneto.data.sources import parse_source
from magneto.vision_language.question_answering import vqa_files
from magneto.vision_language.question_answering.config import QuestionAnsweringDataConfig
from magneto.vision_language.question_answering.questions import (
    IMAGE_MISSING,
    WITHOUT_IMAGE,
    QuestionSplit,
    with_one_answer,
)
from magneto.vision_language.scenes import SceneQuestions, scene_questions

KNOWN = "v2_OpenEnded_mscoco_train2014_questions.json"
IMAGE_FOLDER = ": name the folder of train2014, val2014 and test2015, data.image_folder"


@dataclass(frozen=True)
class QuestionSplits:
    """What a source has.

    Attributes:
        train: To train on.
        validation: To validate on.
        majorities: The majority answers of all annotations, by which the answers to choose from
            are found where the source does not list them.
        answers: Those that it lists; none if it lists none.
        missing: Names of images that training questions are about and that are not there.
        counts: What was met while reading.
    """

    train: QuestionSplit
    validation: QuestionSplit
    majorities: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    missing: Sequence[str] = ()
    counts: Counts = field(default_factory=Counts)


def read_source(config: QuestionAnsweringDataConfig) -> QuestionSplits:
    """Read the questions of a source; of a split without public answers nothing else is read.

    Raises:
        FileNotFoundError: If there is no such path, or a file of it is missing.
        ValueError: If it holds no questions to train or to validate on, or none of their images.
    """
    found = found_questions(config)
    train, validation = len(found.train), len(found.validation)
    alone = config.validation_split in vqa_files.WITHOUT_ANSWERS
    if (train or alone) and validation > found.counts[IMAGE_MISSING]:
        return found
    what = f"{validation} questions to answer" if alone else (
        f"{train} questions to train on and {validation} to validate on")  # fmt: skip
    raise ValueError(f"{config.source} has {what}{found.counts.describe()}{images_sought(found)}")


def images_sought(found: QuestionSplits) -> str:
    """Return where an image was sought that is not there, for a message; "" if all are there."""
    absent = np.flatnonzero(found.validation.missing)
    names = [*found.missing[:1], *(found.validation.image_name(int(i)) for i in absent[:1])]
    if not names:
        return ""
    name = names[-1] if len(found.train) else names[0]
    return f"; there is no image {name}{IMAGE_FOLDER if '/COCO_' in name else ''}"


def found_questions(config: QuestionAnsweringDataConfig) -> QuestionSplits:
    """Return the questions of a source, by what it is; see `read_source`."""
    counts = Counts()
    builtin = parse_source(config.source).kind == "builtin"
    folder = Path() if builtin else existing_path(config.source)
    if not builtin and vqa_files.is_vqa(folder):
        return vqa_questions(config, folder, counts)
    if config.validation_split != "held_out":
        raise ValueError(f"data.validation_split {config.validation_split} is of VQA v2, and "
                         f"{config.source} is another set")  # fmt: skip
    if builtin:
        return built_in_questions()
    raise ValueError(f"{config.source} has no questions of VQA v2, such as {KNOWN}")


def built_in_questions() -> QuestionSplits:
    """Return the questions about rendered scenes."""
    found = scene_questions()
    train, validation = (scene_split(found[name]) for name in ("train", "validation"))
    answers = sorted({question.majority for question in train.questions})
    return QuestionSplits(train, validation, answers=tuple(answers))


def scene_split(scenes: SceneQuestions) -> QuestionSplit:
    """Return questions about scenes as those of any source."""
    rows = zip(scenes.questions, scenes.answers, strict=True)
    questions = [with_one_answer(number, number, *row) for number, row in enumerate(rows)]
    return QuestionSplit(scenes.images, questions)


def vqa_questions(
    config: QuestionAnsweringDataConfig, folder: Path, counts: Counts
) -> QuestionSplits:
    """Return VQA v2, split as `validation_split` says; of a test split, itself alone."""
    images = existing_path(config.image_folder) if config.image_folder else folder
    if config.validation_split in vqa_files.WITHOUT_ANSWERS:
        asked = vqa_files.read_split(folder, images, config.validation_split, counts)
        return QuestionSplits(asked.chosen([]), counted(asked, counts), counts=counts)
    train, other = (
        vqa_files.read_split(folder, images, name, counts) for name in vqa_files.ANNOTATED
    )
    majorities = tuple(q.majority for part in (train, other) for q in part.questions)
    ids = [vqa_files.image_id(other, question) for question in other.questions]
    chosen = set(ids)
    if config.validation_split != "val2014":
        chosen = vqa_files.held_out_images(ids, config.validation_images, config.validation_seed)
    rest = other.chosen([index for index, image in enumerate(ids) if image not in chosen])
    validation = other.chosen([index for index, image in enumerate(ids) if image in chosen])
    there, missing = with_images(vqa_files.joined(images, (train, rest)), counts)
    return QuestionSplits(
        there, counted(validation, counts), majorities=majorities, missing=missing, counts=counts
    )


def with_images(split: QuestionSplit, counts: Counts) -> tuple[QuestionSplit, list[str]]:
    """Leave the questions out whose image is missing, count them, and name the images."""
    missing = split.missing
    counts[WITHOUT_IMAGE] += int(missing.sum())
    names = dict.fromkeys(split.image_name(int(index)) for index in np.flatnonzero(missing))
    return split.chosen(np.flatnonzero(~missing)), list(names)


def counted(split: QuestionSplit, counts: Counts) -> QuestionSplit:
    """Count the validation questions whose image is missing; they stay, and score 0."""
    counts[IMAGE_MISSING] += int(split.missing.sum())
    return split
