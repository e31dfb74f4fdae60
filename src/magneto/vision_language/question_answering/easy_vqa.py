"""easy-VQA as it comes: shapes of 64 x 64 pixels, questions with one answer each.

    FOLDER/train/questions.json, FOLDER/train/images/0.png    (as the package easy-vqa has them)
    FOLDER/train_questions.json, FOLDER/images.zip            (or with all images in one file)

and likewise test; FOLDER/answers.txt has the answers to choose from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magneto.data.counts import MALFORMED, Counts
from magneto.data.records import read_list
from magneto.files import nearest_path
from magneto.vision.images import FileStore, ImageStore
from magneto.vision.listing import IMAGE_ENDINGS
from magneto.vision_language.question_answering.answers import read_answers
from magneto.vision_language.question_answering.questions import (
    EMPTY_QUESTIONS,
    MISSING,
    QuestionSplit,
    with_one_answer,
)
from magneto.vision_language.zips import open_zips

ANSWER_FILE = "answers.txt"


def question_file(folder: Path, split: str) -> Path | None:
    """Return the path of a split's questions; None if there is none."""
    places = (folder / split / "questions.json", folder / f"{split}_questions.json")
    return next((place for place in places if place.is_file()), None)


def is_easy_vqa(folder: Path) -> bool:
    """Return whether a folder holds a split of easy-VQA."""
    return any(question_file(folder, split) for split in ("train", "test"))


def read_split(folder: Path, split: str, counts: Counts) -> QuestionSplit:
    """Read a split.

    Args:
        folder: The source.
        split: "train" or "test".
        counts: Filled while reading.

    Raises:
        FileNotFoundError: If its questions are not there.
        ValueError: If they are something else.
    """
    path = question_file(folder, split)
    if path is None:
        wanted = folder / f"{split}_questions.json"
        raise FileNotFoundError(f"no file {wanted}{nearest_path(wanted)}")
    rows = read_rows(path, counts)
    store, places = open_store(folder, split, sorted({image for _, _, _, image in rows}))
    questions = [
        with_one_answer(number, places.get(image, MISSING), text, answer)
        for number, text, answer, image in rows
    ]
    return QuestionSplit(store, questions)


def read_rows(path: Path, counts: Counts) -> list[tuple[int, str, str, int]]:
    """Return (number, question, answer, number of the image) of each question.

    Raises:
        ValueError: If the file is no JSON list.
    """
    found = []
    for number, row in enumerate(read_list(path, None, counts)):
        whole = isinstance(row, list) and [type(part) for part in row] == [str, str, int]
        if not whole:
            counts.met(MALFORMED, f"{path}, question {number + 1}", "not [question, answer, image]")
            continue
        text, answer, image = row
        counts[EMPTY_QUESTIONS] += not text.strip()
        found.append((number, text, answer, image))
    return found


def open_store(
    folder: Path, split: str, images: Sequence[int]
) -> tuple[ImageStore, dict[int, int]]:
    """Return where a split's images lie, a folder or images.zip, and their numbers there."""
    names = {image: f"{split}/images/{image}.png" for image in images}
    packed = folder / "images.zip"
    if (folder / split / "images").is_dir() or not packed.is_file():
        places = {image: place for place, image in enumerate(images)}
        return FileStore(folder, list(names.values())), places
    store = open_zips([packed], IMAGE_ENDINGS)
    there = {key: place for place, key in enumerate(store.keys)}
    return store, {image: there[name] for image, name in names.items() if name in there}


def listed_answers(folder: Path) -> tuple[str, ...]:
    """Return the answers that the source lists; none if it lists none.

    Raises:
        ValueError: If its list is damaged.
    """
    path = folder / ANSWER_FILE
    return tuple(read_answers(str(path))) if path.is_file() else ()
