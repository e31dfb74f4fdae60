"""Training and validation questions of a source: VQA v2, easy-VQA, or built-in scenes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from magneto.data.counts import Counts
from magneto.data.files import existing_path
from magneto.data.sources import parse_source
from magneto.vision_language.question_answering import easy_vqa, vqa_files
from magneto.vision_language.question_answering.config import QuestionAnsweringDataConfig
from magneto.vision_language.question_answering.questions import (
    IMAGE_MISSING,
    WITHOUT_IMAGE,
    QuestionSplit,
    with_one_answer,
)
from magneto.vision_language.scenes import SceneQuestions, scene_questions

KNOWN = "VQA v2's v2_OpenEnded_mscoco_train2014_questions.json, easy-VQA's train_questions.json"


@dataclass(frozen=True)
class QuestionSplits:
    """What a source has.

    Attributes:
        train: To train on.
        validation: To validate on.
        majorities: The majority answers of all annotations, by which the answers to choose from
            are found where the source does not list them.
        answers: Those that it lists; none if it lists none.
        counts: What was met while reading.
    """

    train: QuestionSplit
    validation: QuestionSplit
    majorities: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    counts: Counts = field(default_factory=Counts)


def read_source(config: QuestionAnsweringDataConfig) -> QuestionSplits:
    """Read the questions of a source.

    Raises:
        FileNotFoundError: If there is no such path, or a file of it is missing.
        ValueError: If it holds no questions to train or to validate on.
    """
    found = found_questions(config)
    train, validation = len(found.train), len(found.validation)
    if not train or not validation:
        raise ValueError(f"{config.source} has {train} questions to train on and {validation} to "
                         f"validate on: {found.counts.describe() or 'none'}")  # fmt: skip
    return found


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
    if easy_vqa.is_easy_vqa(folder):
        return easy_questions(folder, counts)
    raise ValueError(f"{config.source} has no questions: none of {KNOWN}")


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


def easy_questions(folder: Path, counts: Counts) -> QuestionSplits:
    """Return easy-VQA, whose test split is validated on."""
    train, test = (easy_vqa.read_split(folder, name, counts) for name in ("train", "test"))
    return QuestionSplits(
        with_images(train, counts),
        counted(test, counts),
        majorities=tuple(question.majority for question in train.questions),
        answers=easy_vqa.listed_answers(folder),
        counts=counts,
    )


def vqa_questions(
    config: QuestionAnsweringDataConfig, folder: Path, counts: Counts
) -> QuestionSplits:
    """Return VQA v2, split as `validation_split` says."""
    images = existing_path(config.image_folder) if config.image_folder else folder
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
    if config.validation_split in vqa_files.WITHOUT_ANSWERS:
        validation = vqa_files.read_split(folder, images, config.validation_split, counts)
    return QuestionSplits(
        with_images(vqa_files.joined(images, (train, rest)), counts),
        counted(validation, counts),
        majorities=majorities,
        counts=counts,
    )


def with_images(split: QuestionSplit, counts: Counts) -> QuestionSplit:
    """Leave the questions out whose image is missing, and count them."""
    missing = split.missing
    counts[WITHOUT_IMAGE] += int(missing.sum())
    return split.chosen(np.flatnonzero(~missing))


def counted(split: QuestionSplit, counts: Counts) -> QuestionSplit:
    """Count the validation questions whose image is missing; they stay, and score 0."""
    counts[IMAGE_MISSING] += int(split.missing.sum())
    return split
