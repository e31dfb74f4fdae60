"""Questions about images: from VQA v2's files, from any table, or about rendered scenes.

VQA v2, as its authors give it, is questions and annotations in JSON, and images by COCO's ids:

    FOLDER/v2_OpenEnded_mscoco_train2014_questions.json     (or in FOLDER/vqa/, .json.gz too)
    FOLDER/v2_mscoco_train2014_annotations.json
    FOLDER/train2014/COCO_train2014_000000000009.jpg

and likewise val2014, and test2015 and test-dev2015, which share images and have no annotations.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from magneto.data.files import existing_path, non_negative_integer, read_list
from magneto.data.media import Files
from magneto.data.problems import BadRecord, Counts, DataProblems, read_each
from magneto.data.sources import parse_source
from magneto.data.table import Table, table_of_columns
from magneto.files import user_path
from magneto.progress import SILENT, Progress
from magneto.runs import open_run
from magneto.vision_language.answers import (
    ANNOTATORS,
    Targets,
    answerable,
    gather_targets,
    known_answers,
    normalise_answer,
    read_answers,
    share_known,
)
from magneto.vision_language.config import QuestionAnsweringDataConfig
from magneto.vision_language.scenes import scene_questions
from magneto.vision_language.tables import (
    ImageRows,
    find_columns,
    load_rows,
    read_tables,
    with_words,
)

QUESTION_FILE = "v2_OpenEnded_mscoco_{split}_questions.json"
ANNOTATION_FILE = "v2_mscoco_{split}_annotations.json"
# Folders that may hold these files, beside the source itself.
INNER = (".", "vqa", "annotations", "questions", "Annotations", "Questions")
ANNOTATED = ("train2014", "val2014")
WITHOUT_ANSWERS = ("test-dev2015", "test2015")
LEAST = 9
"""Times that an answer of VQA v2 occurs to be one to choose from."""
COLUMNS = ("image", "question", "answers", "majority", "kind", "id")
HELD_OUT_FILE = "validation-images.json"
"""In a run's assets: which images are validated on."""
# Folder of the images of which "held_out" holds some out and trains on the others.
DIVIDED = "val2014/"

# What is said of a set while it is read.
DUPLICATES = "questions whose id was there before left out"
ANNOTATED_TWICE = "further annotations of a question left out"
UNANNOTATED = "questions without an annotation left out"
UNASKED = "annotations without a question left out"
EMPTY_QUESTIONS = "empty questions"
UNKNOWN_TRAINING = "training questions none of whose answers the look-up knows left out"
UNKNOWN_VALIDATION = "validation questions that no known answer is right for (they score 0)"


@dataclass(frozen=True)
class Questions:
    """Questions ready to be taught: columns "question", "answers", "majority", "kind" and "id".

    Attributes:
        train: Those that have a known answer, and whose images are there.
        validation: All of them; one that no known answer is right for scores 0.
        answers: That are known, in the order of their numbers.
        answerable: Whether a known answer scores above 0, boolean (validation questions,).
        shares_known: Share of the annotators' answers in training that are known by the look-up
            "raw" and by the look-up "normalised".
    """

    train: ImageRows
    validation: ImageRows
    answers: list[str]
    train_targets: Targets
    validation_targets: Targets
    answerable: np.ndarray
    shares_known: tuple[float, float]
    counts: Counts

    @cached_property
    def answered(self) -> bool:
        """Whether the validation answers are there: those of VQA v2's test sets are not public."""
        return any(self.validation.values("answers"))

    def describe(self) -> str:
        """Say how much there is, what was odd, and what the two look-ups know."""
        if not self.answered:
            alone = {"questions without public answers": len(self.validation),
                     "answers to choose from": len(self.answers)}  # fmt: skip
            return self.counts.describe_amounts(alone)
        parts = {"training questions": len(self.train),
                 "validation questions": len(self.validation),
                 "answers": len(self.answers)}  # fmt: skip
        raw, normalised = self.shares_known
        return (f"{self.counts.describe_amounts(parts)}; the answer list covers {raw:.2%} of the "
                f"annotations, {normalised:.2%} after normalisation")  # fmt: skip


def load_questions(
    config: QuestionAnsweringDataConfig, problems: DataProblems, progress: Progress = SILENT
) -> Questions:
    """Read questions to train and to validate on, choose the known answers, make the targets.

    Of a split without public answers nothing is read to train on.

    Raises:
        FileNotFoundError: If there is no such path, or a file of VQA v2 is missing.
        ValueError: If nothing is left to train on, or there are no answers to choose from.
    """
    counts, lookup, tables = Counts(), config.answer_lookup, dict[str, Mapping[str, Table]]()

    def read(source: str) -> Mapping[str, Table]:
        folder, split = vqa_folder(source), config.validation_split
        if folder is None and split != "held_out":
            raise ValueError(f"data.validation_split {split} is of VQA v2, and {source} is "
                             "another set")  # fmt: skip
        if folder is not None:
            tables[source] = vqa_tables(folder, config, counts)
        else:
            there = read_tables(source, scene_questions, counts, progress)
            tables[source] = {name: question_table(table, config, counts)
                              for name, table in there.items()}  # fmt: skip
        return tables[source]

    found = load_rows(config, read, problems, counts, key="image_id")
    train, held = found.train, found.validation
    alone = config.validation_split in WITHOUT_ANSWERS
    if not len(held) or not (len(train) or alone):
        raise ValueError(f"{config.source} has {len(train)} questions to train on and {len(held)} "
                         f"to validate on{counts.describe()}")  # fmt: skip
    answers = choose_answers(config, tables[config.source])
    targets = gather_targets(train.values("answers"), answers, lookup)
    taught = train.take(targets.known)
    if not alone and (not len(taught) or len(answers) < 2):
        few = too_few(config, tables[config.source], answers, f"{len(taught)} of {len(train)}")
        raise ValueError(f"{config.source}: {few}")
    counts[UNKNOWN_TRAINING] += len(train) - len(taught)
    can = np.fromiter(answerable(held.values("answers"), answers, config.normalise_answers), bool)
    counts[UNKNOWN_VALIDATION] += 0 if alone else int((~can).sum())
    said = train.values("answers")
    return Questions(
        taught, held, answers, gather_targets(taught.values("answers"), answers, lookup),
        gather_targets(held.values("answers"), answers, lookup), can,
        (share_known(said, answers, "raw"), share_known(said, answers, "normalised")), counts,
    )  # fmt: skip


def question_table(table: Table, config: QuestionAnsweringDataConfig, counts: Counts) -> Table:
    """Return the questions of a table that has an image, a question and an answer in each row.

    A list of answers is one of each annotator; a single answer counts as `ANNOTATORS` who agree.
    """
    words = {"question": config.question_column, "answer": config.answer_column}
    table = find_columns(table, {"image": config.image_column}, words, config.image_folder, counts)

    def read(row: int) -> tuple[int, dict[str, Any]]:
        record = {name: column[row] for name, column in table.columns.items()}
        text, answers = record["question"], answers_of(record["answer"])
        if not isinstance(text, str):
            raise BadRecord("no question")
        if not answers:
            raise BadRecord("no answer")
        counts[EMPTY_QUESTIONS] += not text.strip()
        majority = record.get("multiple_choice_answer") or Counter(answers).most_common(1)[0][0]
        store = table.columns["image"]
        return row, {
            "question": text.strip(),
            "answers": answers if len(answers) > 1 else answers * ANNOTATORS,
            "majority": str(majority),
            "kind": str(record.get("answer_type") or kind_of(str(majority))),
            "id": record.get("question_id", row),
            "image_id": str(record.get("image_id") or store.key(row)),
        }

    rows = read_each(table.rows.tolist(), read, counts, f"{table.where}, record")
    return with_words(table, ("image",), dict(rows), counts)


def answers_of(value: Any) -> tuple[str, ...]:
    """Return the annotators' answers: texts, numbers or VQA's objects, one or a list of them."""
    if isinstance(value, dict):
        value = value["answer"]
    if isinstance(value, list | tuple):
        return tuple(word for one in value for word in answers_of(one))
    word = "" if value is None else str(value).strip()
    return (word,) if word else ()


def kind_of(answer: str) -> str:
    """Return the type of an answer that has none: "yes/no", "number" or "other"."""
    if answer in ("yes", "no"):
        return "yes/no"
    return "number" if normalise_answer(answer).isdigit() else "other"


def choose_answers(config: QuestionAnsweringDataConfig, tables: Mapping[str, Table]) -> list[str]:
    """Return the answers to choose from: those given, or by the rule of VQA v2.

    Where all annotators of each question agree, as where a question has one answer, these are taken
    as they are written, which the metric asks for then.
    """
    if config.answers is not None:
        return read_answers(config.answers)
    if config.validation_split in WITHOUT_ANSWERS:
        raise ValueError(without_answers(config.validation_split))
    vqa = vqa_folder(config.source) is not None
    least = config.least_answer_count or (LEAST if vqa else 1)
    parts = [tables[split] for split in ("train", "validation") if split in tables]
    majorities = [word for part in parts for word in part.values("majority")]
    written = not vqa and config.answer_lookup == "raw"
    if written and all(len({*said}) == 1 for part in parts for said in part.values("answers")):
        return sorted(word for word, count in Counter(majorities).items() if count >= least)
    return known_answers(majorities, least)


def too_few(
    config: QuestionAnsweringDataConfig, tables: Mapping[str, Table], answers: Sequence[str],
    taught: str,
) -> str:  # fmt: skip
    """Return why nothing can be learnt from questions, and what to set if that helps."""
    every = (word for table in tables.values() for word in table.values("majority"))
    different = known_answers(every, 1)
    if config.answers is None and len(different) == 1:
        return (f"all questions have the same answer, {different[0]!r}; a model that chooses among "
                "answers needs questions with two or more")  # fmt: skip
    return (f"{len(answers)} answers are known, and {taught} questions have one of them: set "
            "data.least_answer_count or data.answers")  # fmt: skip


def without_answers(split: str) -> str:
    """Return why a split can't be trained with, for a message."""
    return (f"{split} has no public answers to validate on: train with data.validation_split "
            "held_out")  # fmt: skip


def file_of(folder: Path, pattern: str, split: str) -> Path:
    """Return the path of a split's questions or annotations, also where there is no such file."""
    name = pattern.format(split=split)
    places = (folder / inner / packed for inner in INNER for packed in (name, f"{name}.gz"))
    return next((place for place in places if place.is_file()), folder / name)


def vqa_folder(source: str) -> Path | None:
    """Return the folder of a source that has a split of VQA v2; None of another source."""
    if parse_source(source).kind != "path":
        return None
    folder, splits = existing_path(source), (*ANNOTATED, *WITHOUT_ANSWERS)
    there = any(file_of(folder, QUESTION_FILE, split).is_file() for split in splits)
    return folder if there else None


def vqa_tables(
    folder: Path, config: QuestionAnsweringDataConfig, counts: Counts
) -> dict[str, Table]:
    """Return VQA v2, split as `validation_split` says; of a test split nothing to train on."""
    root = existing_path(config.image_folder) if config.image_folder else folder

    def table(records: Sequence[Sequence[Any]]) -> Table:
        columns: dict[str, Any] = {
            name: [record[place] for record in records] for place, name in enumerate(COLUMNS)
        }
        return table_of_columns({**columns, "image": Files(root, columns["image"])}, str(folder))

    if config.validation_split in WITHOUT_ANSWERS:
        return {
            "train": table([]),
            "validation": table(read_split(folder, config.validation_split, counts)),
        }
    train, other = (read_split(folder, name, counts) for name in ANNOTATED)
    names = {name: int(name[-16:-4]) for name, *_ in other}
    chosen = {*names.values()}
    if config.validation_split != "val2014":
        chosen = held_out_images(chosen, config.validation_images, config.validation_seed)
    rest = [record for record in other if names[record[0]] not in chosen]
    held = [record for record in other if names[record[0]] in chosen]
    return {"train": table([*train, *rest]), "validation": table(held)}


def read_split(folder: Path, split: str, counts: Counts) -> list[tuple[Any, ...]]:
    """Return `COLUMNS` of each question of a split, of `ANNOTATED` or `WITHOUT_ANSWERS`."""
    path = existing_path(str(file_of(folder, QUESTION_FILE, split)))
    rows = read_each(read_list(path, "questions", counts), question_of, counts, f"{path}, question")
    asked = by_id(rows, path, DUPLICATES, counts)
    counts[EMPTY_QUESTIONS] += sum(not text.strip() for _, text in asked.values())
    notes: dict[int, tuple[Any, ...]] = dict.fromkeys(asked, ((), "", ""))
    if split in ANNOTATED:
        path = existing_path(str(file_of(folder, ANNOTATION_FILE, split)))
        records = read_list(path, "annotations", counts)
        rows = read_each(records, annotation_of, counts, f"{path}, annotation")
        notes = by_id(rows, path, ANNOTATED_TWICE, counts)
        counts[UNANNOTATED] += len(asked.keys() - notes.keys())
        counts[UNASKED] += len(notes.keys() - asked.keys())
    within = "test2015" if split in WITHOUT_ANSWERS else split
    images = {image: f"{within}/COCO_{within}_{image:012d}.jpg" for image, _ in asked.values()}
    return [
        (images[asked[number][0]], asked[number][1], *note, number)
        for number, note in notes.items()
        if number in asked
    ]


def by_id(
    rows: Iterable[tuple[int, Any]], path: Path, twice: str, counts: Counts
) -> dict[int, Any]:
    """Return records by their question's id; those of an id that was there before are counted."""
    found: dict[int, Any] = {}
    for number, record in rows:
        if number in found:
            counts.record(twice, str(path), f"question_id {number} was there before")
        else:
            found[number] = record
    return found


def question_of(row: Any) -> tuple[int, tuple[int, str]]:
    """Return a record as a question's id, its image's id and its text; ids are whole numbers."""
    number, image = non_negative_integer(row, "question_id"), non_negative_integer(row, "image_id")
    if not isinstance(row.get("question"), str):
        raise BadRecord("no text")
    return number, (image, row["question"])


def annotation_of(row: Any) -> tuple[int, tuple[tuple[str, ...], str, str]]:
    """Return a record as a question's id, the annotators' answers, the majority's and its type."""
    number = non_negative_integer(row, "question_id")
    answers = tuple(one["answer"] for one in row["answers"])
    majority, kind = row["multiple_choice_answer"], row["answer_type"]
    if not answers or not all(isinstance(word, str) for word in (*answers, majority, kind)):
        raise BadRecord("no answers to a question")
    # One copy of each of the words, which come again and again.
    return number, (tuple(map(intern, answers)), intern(majority), intern(kind))


def held_out_images(ids: Iterable[int], count: int, seed: int) -> set[int]:
    """Choose the images to validate on, so that everybody can choose the same ones.

    They are the `count` images with the smallest BLAKE2b digests (8 bytes) of the text "SEED:ID",
    where ID is COCO's: of VQA v2, 1000 of val2014's with the seed 0.
    """
    ranks = {n: hashlib.blake2b(f"{seed}:{n}".encode(), digest_size=8).digest() for n in ids}
    return set(sorted(ranks, key=ranks.__getitem__)[:count])


def image_keys(rows: ImageRows) -> list[str]:
    """Return what the images that are asked about are called within the set, each once."""
    store = rows.table.columns["image"]
    return list(dict.fromkeys(store.key(number) for number in rows.table.rows.tolist()))


def check_held_out(
    config: QuestionAnsweringDataConfig, measured: Sequence[str], progress: Progress
) -> None:
    """See that a run held out what it is measured on.

    If it was trained on some of them, it is refused, and said what measures the others. In another
    folder than that of its own data, images with the same names may have other questions; so there
    it is said, and not refused.
    """
    assert config.held_out is not None
    run = Path(config.held_out).parents[1]
    own = open_run(run).data
    held = read_list(Path(config.held_out), None, Counts())
    trained = trained_on(measured, held, own.validation_split)
    if not trained:
        return
    share = f"{len(trained):,} of the {len(measured):,} images"
    if user_path(own.source).resolve() == user_path(config.source).resolve():
        raise ValueError(f"{run} was trained on {share} that it would be measured on: "
                         f"data.validation_split {own.validation_split}, data.validation_images "
                         f"{own.validation_images} and data.validation_seed {own.validation_seed} "
                         "measure what it held out")  # fmt: skip
    progress.say(f"WARNING: {share} in {config.source} have names of images that {run} was trained "
                 f"on, such as {trained[0]}; unless their questions are others, this measures "
                 "training")  # fmt: skip


def trained_on(measured: Sequence[str], held: Sequence[str], split: str) -> list[str]:
    """Return the images of VQA v2 that a run may have been trained on."""
    if split != "held_out" or not any(name.startswith(DIVIDED) for name in held):
        return []  # it was trained on no image of val2014
    left_out = set(held)
    return [name for name in measured if name.startswith(DIVIDED) and name not in left_out]
