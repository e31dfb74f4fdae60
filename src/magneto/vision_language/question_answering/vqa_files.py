"""VQA v2 as its authors give it: questions and annotations in JSON, images by COCO's ids.

    FOLDER/v2_OpenEnded_mscoco_train2014_questions.json     (or in FOLDER/vqa/, .json.gz too)
    FOLDER/v2_mscoco_train2014_annotations.json
    FOLDER/train2014/COCO_train2014_000000000009.jpg

and likewise val2014, and test2015 and test-dev2015, which share images and have no annotations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from magneto.data.counts import Counts
from magneto.data.files import read_list, whole_number
from magneto.data.media import Files
from magneto.data.problems import BadRecord, read_each
from magneto.files import nearest_path
from magneto.vision_language.question_answering.questions import (
    ANNOTATED_TWICE,
    DUPLICATES,
    EMPTY_QUESTIONS,
    UNANNOTATED,
    UNASKED,
    Question,
    QuestionSplit,
)

QUESTION_FILE = "v2_OpenEnded_mscoco_{split}_questions.json"
ANNOTATION_FILE = "v2_mscoco_{split}_annotations.json"
# Folders that may hold these files, beside the source itself.
INNER = (".", "vqa", "annotations", "questions", "Annotations", "Questions")
IMAGE_FOLDERS = {"test-dev2015": "test2015"}
ANNOTATED = ("train2014", "val2014")
WITHOUT_ANSWERS = ("test-dev2015", "test2015")
ANNOTATION_KEYS = ("multiple_choice_answer", "question_type", "answer_type")

Annotation = tuple[tuple[str, ...], str, str, str]
"""The annotators' answers, the majority answer, the types of question and answer."""


def find_file(folder: Path, pattern: str, split: str) -> Path | None:
    """Return the path of a split's questions or annotations; None if there is none."""
    name = pattern.format(split=split)
    places = (folder / inner / packed for inner in INNER for packed in (name, f"{name}.gz"))
    return next((place for place in places if place.is_file()), None)


def is_vqa(folder: Path) -> bool:
    """Return whether a folder holds a split of VQA v2."""
    return any(find_file(folder, QUESTION_FILE, s) for s in (*ANNOTATED, *WITHOUT_ANSWERS))


def read_split(folder: Path, images: Path, split: str, counts: Counts) -> QuestionSplit:
    """Read a split.

    Args:
        folder: Of questions and annotations.
        images: That has the folders of images.
        split: "train2014", "val2014", "test2015" or "test-dev2015".
        counts: Filled while reading.

    Raises:
        FileNotFoundError: If its questions, or the annotations of an annotated split, are not
            there.
        ValueError: If a file holds something else.
    """
    path = needed(folder, QUESTION_FILE, split)
    asked = dict(read_questions(path, counts))
    notes: dict[int, Any] = {}
    if split in ANNOTATED:
        notes = dict(read_annotations(needed(folder, ANNOTATION_FILE, split), counts))
        counts[UNANNOTATED] += len(asked.keys() - notes.keys())
        counts[UNASKED] += len(notes.keys() - asked.keys())
        asked = {number: asked[number] for number in notes if number in asked}
    ids = sorted({image for image, _ in asked.values()})
    places = {image: place for place, image in enumerate(ids)}
    unknown: tuple[Any, ...] = ()
    questions = [
        Question(number, places[image], text, *notes.get(number, unknown))
        for number, (image, text) in asked.items()
    ]
    within = IMAGE_FOLDERS.get(split, split)
    names = [f"{within}/COCO_{within}_{image:012d}.jpg" for image in ids]
    return QuestionSplit(Files(images, names), questions)


def needed(folder: Path, pattern: str, split: str) -> Path:
    """Return the path of a file of a split.

    Raises:
        FileNotFoundError: If it is not there.
    """
    found = find_file(folder, pattern, split)
    if found is None:
        wanted = folder / pattern.format(split=split)
        raise FileNotFoundError(f"no file {wanted}{nearest_path(wanted)}")
    return found


def read_questions(path: Path, counts: Counts) -> Iterator[tuple[int, tuple[int, str]]]:
    """Yield (id, (id of the image, text)) of each question."""
    met = set()
    rows = read_list(path, "questions", counts)
    for number, (image, text) in read_each(rows, question_of, counts, f"{path}, question"):
        if number in met:
            counts.met(DUPLICATES, str(path), f"question_id {number} was there before")
            continue
        met.add(number)
        counts[EMPTY_QUESTIONS] += not text.strip()
        yield number, (image, text)


def question_of(row: Any) -> tuple[int, tuple[int, str]]:
    """Return a record as a question.

    Raises:
        BadRecord: If it has no text, or no two whole numbers as ids: its image would be another's.
    """
    number, image = whole_number(row, "question_id"), whole_number(row, "image_id")
    if not isinstance(row.get("question"), str):
        raise BadRecord("no text")
    return number, (image, row["question"])


def read_annotations(path: Path, counts: Counts) -> Iterator[tuple[int, Annotation]]:
    """Yield the id of a question and what is known of it, of each annotation."""
    # One copy of each of the words, which come again and again.
    words: dict[Any, Any] = {}
    met = set()
    rows = read_list(path, "annotations", counts)
    for number, (answers, *rest) in read_each(rows, annotation_of, counts, f"{path}, annotation"):
        if number in met:
            counts.met(ANNOTATED_TWICE, str(path), f"question_id {number} was there before")
            continue
        met.add(number)
        shared = tuple(words.setdefault(answer, answer) for answer in answers)
        majority, question_type, answer_type = (words.setdefault(word, word) for word in rest)
        yield number, (words.setdefault(shared, shared), majority, question_type, answer_type)


def annotation_of(row: Any) -> tuple[int, Annotation]:
    """Return a record as an annotation.

    Raises:
        BadRecord: If it has no id of a question, or no answers; or anything of another shape.
    """
    number = whole_number(row, "question_id")
    answers = tuple(one["answer"] for one in row["answers"])
    majority, *types = (row[key] for key in ANNOTATION_KEYS)
    if not answers or not all(isinstance(word, str) for word in (*answers, majority, *types)):
        raise BadRecord("no answers to a question")
    return number, (answers, majority, types[0], types[1])


def image_id(split: QuestionSplit, question: Question) -> int:
    """Return COCO's id of a question's image, from the name of its file."""
    return int(split.store.key(question.image).rpartition("_")[2].partition(".")[0])


def held_out_images(ids: Iterable[int], count: int, seed: int) -> set[int]:
    """Choose the images to validate on, so that everybody can choose the same ones.

    They are the `count` images with the smallest BLAKE2b digests (8 bytes) of the text "SEED:ID":
    of VQA v2, 1000 of val2014's with the seed 0.

    Args:
        ids: COCO's ids of the images to choose from.
        count: How many.
        seed: Another one chooses others.
    """

    def rank(image: int) -> bytes:
        return hashlib.blake2b(f"{seed}:{image}".encode(), digest_size=8).digest()

    return set(sorted(set(ids), key=rank)[:count])


def joined(images: Path, parts: Sequence[QuestionSplit]) -> QuestionSplit:
    """Return the questions of several splits, over the images of all of them."""
    names: list[str] = []
    questions: list[Question] = []
    for part in parts:
        start = len(names)
        names += [part.store.key(number) for number in range(len(part.store))]
        questions += [one._replace(image=one.image + start) for one in part.questions]
    return QuestionSplit(Files(images, names), questions)
