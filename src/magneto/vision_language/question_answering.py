"""Visual question answering: the answer to a question about an image is chosen from a list.

Questions come from VQA v2's files, from a table, or from the built-in scenes. The questions of VQA
v2's test-dev2015 are about images of test2015. The splits test-dev2015 and test2015 have no
annotations. The .json files may be in a subfolder, and may be compressed (.json.gz). The files of
every split are named like these files of train2014:

    FOLDER/v2_OpenEnded_mscoco_train2014_questions.json
    FOLDER/v2_mscoco_train2014_annotations.json
    FOLDER/train2014/COCO_train2014_000000000009.jpg
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.files import existing_path, non_negative_integer, read_list, unpacked_name
from magneto.data.formats import VQA, layout_files
from magneto.data.media import Files
from magneto.data.problems import BadRecord, Counts, DataProblems, read_each
from magneto.data.stream import BatchStream
from magneto.data.table import Table, table_of_columns
from magneto.files import user_path, write_json
from magneto.progress import SILENT, Progress
from magneto.runs import open_run
from magneto.training.task import Figure
from magneto.vision.images import ImageSplit, ImageSplits
from magneto.vision_language.answers import (
    ANNOTATORS,
    answer_scores,
    answerable,
    gather_targets,
    known_answers,
    normalise_answer,
    question_only_answers,
    read_answers,
    share_known,
)
from magneto.vision_language.config import QuestionAnsweringConfig, QuestionAnsweringDataConfig
from magneto.vision_language.finetuning import NO_ANSWER, PairTask
from magneto.vision_language.model import QuestionAnswerer
from magneto.vision_language.scenes import scene_questions
from magneto.vision_language.tables import (
    EVALUATION_BATCH,
    find_columns,
    load_rows,
    read_each_split,
    read_tables,
    with_words,
)

QUESTION_FILE = "v2_OpenEnded_mscoco_{split}_questions.json"
ANNOTATION_FILE = "v2_mscoco_{split}_annotations.json"
ANNOTATED = ("train2014", "val2014")
WITHOUT_ANSWERS = ("test-dev2015", "test2015")
LEAST = 9
"""In VQA v2's answer list, each answer is the majority answer to at least this many questions."""
COLUMNS = ("image", "question", "answers", "majority", "kind", "id")
ANSWERS_FILE, HELD_OUT_FILE = "answers.json", "validation-images.json"
"""Files in a run's assets: the answer list, and the names of the validation images."""
# Folder of the images that "held_out" divides into training and validation images.
DIVIDED = "val2014/"

# Kinds of problems that are counted while a set is read.
DUPLICATES = "questions left out because of a duplicate id"
ANNOTATED_TWICE = "annotations left out because the question already has an annotation"
UNANNOTATED = "questions left out because of a missing annotation"
UNASKED = "annotations left out because of a missing question"
EMPTY_QUESTIONS = "empty questions"
UNKNOWN_TRAINING = "training questions left out because none of their answers is in the answer list"
UNKNOWN_VALIDATION = "validation questions without a right answer in the answer list (score 0)"


@dataclass(frozen=True, kw_only=True)
class Questions(ImageSplits):
    """Training and validation questions, and targets.

    The columns are "question", "answers", "majority", "kind" and "id". Every training question has
    an image, and an answer in the answer list.
    """

    answers: list[str]
    train_targets: Any
    validation_targets: Any
    answerable: np.ndarray
    """True for a validation question if an answer in the list scores above 0."""
    coverage: tuple[float, float]
    """Share of the annotators' answers that the list contains, before and after normalisation."""

    @cached_property
    def answered(self) -> bool:
        """Whether the validation questions have answers; VQA v2's test splits have none."""
        return any(self.validation.values("answers"))

    def describe(self, rows: str = "questions") -> str:
        if not self.answered:
            alone = {"questions without public answers": len(self.validation),
                     "answers in the list": len(self.answers)}  # fmt: skip
            return self.counts.describe_amounts(alone)
        parts = {f"training {rows}": len(self.train),
                 f"validation {rows}": len(self.validation),
                 "answers": len(self.answers)}  # fmt: skip
        raw, normalised = self.coverage
        return (f"{self.counts.describe_amounts(parts)}; the answer list contains {raw:.2%} of the "
                f"annotated answers, and {normalised:.2%} if answers are normalised")  # fmt: skip


class QuestionAnswering(PairTask):
    """Visual question answering. The loss is the binary cross-entropy in nats per question."""

    unit = words = rows = "questions"
    column, credit = "question", "soft_score"
    model_config: QuestionAnsweringConfig
    data_config: QuestionAnsweringDataConfig

    @cached_property
    def splits(self) -> Questions:
        return load_questions(self.data_config, self.problems, self._progress)

    @cached_property
    def answers(self) -> list[str]:
        named = self.data_config.answers
        return self.splits.answers if named is None else read_answers(named)

    def training_texts(self) -> Iterable[str]:
        self._check_answered()
        return super().training_texts()

    def _check_answered(self) -> None:
        if not self.splits.answered:
            raise ValueError(without_answers(self.data_config.validation_split))

    def check(self) -> None:
        """Check the number of answers, the pre-trained run and the validation images.

        Raises:
            ValueError: If the number of answers or the pre-trained run does not fit, or if
                validation uses training images.
        """
        if self.data_config.held_out is not None:
            measured = image_keys(self.splits.validation)
            check_held_out(self.data_config, measured, self._progress)
        found, wanted = len(self.answers), self.model_config.answers
        if wanted not in (None, found):
            raise ValueError(f"the answer list has {found} answers, but model.answers is {wanted}: "
                             "do not set model.answers")  # fmt: skip
        super().check()

    def build_model(self) -> QuestionAnswerer:
        config = self.sized_config()
        return QuestionAnswerer(replace(config, answers=config.answers or len(self.answers)))

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        rate = self.model_config.head_rate
        names = (name for name, _ in model.named_parameters() if name.startswith("head."))
        return {} if rate == 1 else dict.fromkeys(names, rate)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        self._check_answered()
        return super().train_stream(batch_size, seed)

    def targets(self, validation: bool, rows: np.ndarray) -> Tensor:
        split = self.splits.validation_targets if validation else self.splits.train_targets
        return torch.from_numpy(split[rows].toarray())

    def blank_targets(self, count: int) -> Tensor:
        return torch.zeros(count, self.model_config.answers or len(self.answers))

    def nats(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")

    def credits(self, logits: Tensor, targets: Tensor) -> Tensor:
        return targets.gather(1, logits.argmax(1, keepdim=True))[:, 0]

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss and the official accuracy. Each type of answer has its own accuracy too.

        The metric "soft_score" is the mean target of the predicted answers, as in BEiT-3's released
        code. The metric "unknown" is the share of questions for which every answer of the list
        scores 0. If the validation answers are not public, the only metrics are "questions" and
        "broken".
        """
        count, broken = sums["count"], {"broken": sums["broken"]}
        if not self.splits.answered:
            return {"questions": float(count), **broken}
        rows, given = self._given(predictions)
        asked = self.splits.validation.take(np.array(rows))
        when = self.data_config.normalise_answers
        found = answer_scores(asked.values("answers"), asked.values("kind"), given, when)
        shares = {name: sums[name] / count for name in ("loss", "soft_score")}
        unknown = float((~self.splits.answerable[rows]).sum()) / count
        return {**found, **shares, "unknown": unknown, **broken}

    def given_answers(self, predictions: Sequence[Any]) -> list[tuple[Any, str]]:
        """Return the id and the predicted answer of each question in an evaluation.

        If an image is unreadable, the answer is "".
        """
        ids = self.splits.validation.values("id")
        pairs = sorted(zip(*self._given(predictions), strict=True), key=lambda pair: pair[0])
        return [(ids[row], answer or "") for row, answer in pairs]

    def _given(self, predictions: Sequence[Any]) -> tuple[list[int], list[str | None]]:
        rows, numbers = (torch.cat(part).tolist() for part in zip(*predictions, strict=True))
        return rows, [None if n == NO_ANSWER else self.answers[n] for n in numbers]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the metrics of a question-only baseline.

        The result is {} if the validation answers are not public. For each question, the
        baseline chooses the answer with the highest sum of targets over the training questions with
        the same text. For the loss, the baseline predicts the same targets for every question: each
        answer's mean target over all training questions.
        """
        found = self.splits
        if not found.answered:
            return {}
        rows = self.validation_rows(limit)
        likely = found.train_targets.astype(np.float64).mean(0).clip(1e-6, 1 - 1e-6)
        asked = found.validation.take(rows).values("question")
        chosen = question_only_answers(found.train.values("question"), found.train_targets, asked)
        sums = {"loss": 0.0, "soft_score": 0.0, "broken": 0, "count": len(rows)}
        for start in range(0, len(rows), EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            targets = found.validation_targets[rows[part]].toarray()
            nats = targets * np.log(likely) + (1 - targets) * np.log(1 - likely)
            sums["loss"] -= float(nats.sum())
            sums["soft_score"] += float(targets[np.arange(len(targets)), chosen[part]].sum())
        return self.summarise(sums, [(torch.from_numpy(rows), torch.from_numpy(chosen))])

    def shares(self, logits: Tensor) -> tuple[Sequence[str], Tensor]:
        """Return the answers and their probabilities, assuming that exactly one answer is right.

        The model gives each answer the odds exp(logit), independently of other answers. The
        probabilities are the odds divided by their sum.
        """
        return self.answers, logits.softmax(-1)

    def save_assets(self, directory: Path) -> dict[str, Any]:
        write_json(directory / ANSWERS_FILE, self.answers)
        write_json(directory / HELD_OUT_FILE, image_keys(self.splits.validation))
        kept = super().save_assets(directory)
        kept["data.held_out"] = directory / HELD_OUT_FILE
        return {**kept, "data.answers": directory / ANSWERS_FILE}


def figures(task: QuestionAnswering, model: nn.Module) -> Sequence[Figure]:
    from magneto.vision_language.figures import attention_figure

    held = task.splits.validation
    texts, majorities = held.values("question"), held.values("majority")

    def heading(row: int, answer: int) -> str:
        suffix = f"; annotators: {majorities[row]}" if majorities[row] else ""
        return f"{texts[row]}   —   model: {task.answers[answer]}{suffix}"

    return attention_figure(task, model, heading)


def load_questions(
    config: QuestionAnsweringDataConfig, problems: DataProblems, progress: Progress = SILENT
) -> Questions:
    """Read training and validation questions, choose the answer list, and make the targets.

    For a test split of VQA v2, there are no training questions.
    """
    counts, lookup, tables = Counts(), config.answer_lookup, dict[str, Mapping[str, Table]]()

    def read(source: str) -> Mapping[str, Table]:
        files, split = vqa_files(source), config.validation_split
        if not files and split != "held_out":
            raise ValueError(f"data.validation_split {split!r} needs VQA v2, but {source} is not "
                             "VQA v2: do not set data.validation_split")  # fmt: skip
        if files:
            tables[source] = vqa_tables(existing_path(source), files, config, counts)
        else:
            splits = read_tables(source, scene_questions, counts, progress)
            tables[source] = read_each_split(splits, question_table, config, counts)
        return tables[source]

    found = load_rows(config, read, problems, counts, key="image_id")
    train, held = found.train, found.validation
    alone = config.validation_split in WITHOUT_ANSWERS
    if not len(held) or not (len(train) or alone):
        raise ValueError(f"{config.source} has {len(train)} training questions and {len(held)} "
                         f"validation questions{counts.describe()}")  # fmt: skip
    answers = choose_answers(config, tables[config.source])
    targets = gather_targets(train.values("answers"), answers, lookup)
    known = np.diff(targets.indptr) > 0
    taught = train.take(known)
    if not alone and (not len(taught) or len(answers) < 2):
        raise ValueError(f"{config.source}: the answer list has {len(answers)} answers. "
                         f"{len(taught)} of {len(train)} training questions have an answer in the "
                         "list. At least two answers and one such question are needed: add "
                         "questions, or set data.least_answer_count or data.answers.")  # fmt: skip
    counts[UNKNOWN_TRAINING] += len(train) - len(taught)
    can = np.fromiter(answerable(held.values("answers"), answers, config.normalise_answers), bool)
    counts[UNKNOWN_VALIDATION] += 0 if alone else int((~can).sum())
    written = train.values("answers")
    return Questions(
        taught, held, counts=counts, answers=answers, train_targets=targets[known],
        validation_targets=gather_targets(held.values("answers"), answers, lookup), answerable=can,
        coverage=(share_known(written, answers, "raw"),
                  share_known(written, answers, "normalised")),
    )  # fmt: skip


def question_table(table: Table, config: QuestionAnsweringDataConfig, counts: Counts) -> Table:
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
        image = record.get("image_id")
        return row, {
            "question": text.strip(),
            "answers": answers if len(answers) > 1 else answers * ANNOTATORS,
            "majority": str(majority),
            "kind": str(record.get("answer_type") or kind_of(str(majority))),
            "id": record.get("question_id", row),
            "image_id": table.columns["image"].key(row) if image in (None, "") else str(image),
        }

    found = dict(table.read_each(table.rows.tolist(), read, counts))
    return with_words(table, ("image",), found, counts)


def answers_of(value: Any) -> tuple[str, ...]:
    if isinstance(value, dict):
        value = value["answer"]
    if isinstance(value, list | tuple):
        return tuple(word for one in value for word in answers_of(one))
    word = "" if value is None else str(value).strip()
    return (word,) if word else ()


def kind_of(answer: str) -> str:
    plain = normalise_answer(answer)
    return "yes/no" if plain in ("yes", "no") else "number" if plain.isdigit() else "other"


def choose_answers(config: QuestionAnsweringDataConfig, tables: Mapping[str, Table]) -> list[str]:
    if config.answers is not None:
        return read_answers(config.answers)
    if config.validation_split in WITHOUT_ANSWERS:
        raise ValueError(without_answers(config.validation_split))
    vqa = bool(vqa_files(config.source))
    least = config.least_answer_count or (LEAST if vqa else 1)
    parts = [tables[split] for split in ("train", "validation") if split in tables]
    majorities = [word for part in parts for word in part.values("majority")]
    written = not vqa and config.answer_lookup == "raw"
    # If all annotators agree on a question, the metric requires the same spelling.
    if written and all(len({*row}) == 1 for part in parts for row in part.values("answers")):
        return sorted(word for word, count in Counter(majorities).items() if count >= least)
    return known_answers(majorities, least)


def without_answers(split: str) -> str:
    return (f"{split} has no public answers to validate on: train with "
            "--data.validation_split held_out")  # fmt: skip


def vqa_files(source: str) -> dict[str, Path]:
    """Return VQA v2's question and annotation files, by the file name without .gz."""
    return {unpacked_name(path): path for path in layout_files(source, VQA)}


def file_of(files: Mapping[str, Path], pattern: str, split: str) -> Path:
    name = pattern.format(split=split)
    return existing_path(str(files.get(name, next(iter(files.values())).with_name(name))))


def vqa_tables(
    folder: Path, files: Mapping[str, Path], config: QuestionAnsweringDataConfig, counts: Counts
) -> dict[str, Table]:
    root = existing_path(config.image_folder) if config.image_folder else folder

    def table(records: Sequence[Sequence[Any]]) -> Table:
        columns: dict[str, Any] = {
            name: [record[place] for record in records] for place, name in enumerate(COLUMNS)
        }
        return table_of_columns({**columns, "image": Files(root, columns["image"])}, str(folder))

    if config.validation_split in WITHOUT_ANSWERS:
        return {
            "train": table([]),
            "validation": table(read_split(files, config.validation_split, counts)),
        }
    train, other = (read_split(files, name, counts) for name in ANNOTATED)
    names = {name: int(name[-16:-4]) for name, *_ in other}
    chosen = {*names.values()}
    if config.validation_split != "val2014":
        chosen = held_out_images(chosen, config.validation_images, config.validation_seed)
    rest = [record for record in other if names[record[0]] not in chosen]
    held = [record for record in other if names[record[0]] in chosen]
    return {"train": table([*train, *rest]), "validation": table(held)}


def read_split(files: Mapping[str, Path], split: str, counts: Counts) -> list[tuple[Any, ...]]:
    path = file_of(files, QUESTION_FILE, split)
    rows = read_each(read_list(path, "questions", counts), question_of, counts, f"{path}, question")
    asked = by_id(rows, path, DUPLICATES, counts)
    counts[EMPTY_QUESTIONS] += sum(not text.strip() for _, text in asked.values())
    notes: dict[int, tuple[Any, ...]] = dict.fromkeys(asked, ((), "", ""))
    if split in ANNOTATED:
        path = file_of(files, ANNOTATION_FILE, split)
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
    found: dict[int, Any] = {}
    for number, record in rows:
        if number in found:
            counts.record(twice, str(path), f"question_id {number} is a duplicate")
        else:
            found[number] = record
    return found


def question_of(row: Any) -> tuple[int, tuple[int, str]]:
    number, image = non_negative_integer(row, "question_id"), non_negative_integer(row, "image_id")
    if not isinstance(row.get("question"), str):
        raise BadRecord("no text")
    return number, (image, row["question"])


def annotation_of(row: Any) -> tuple[int, tuple[tuple[str, ...], str, str]]:
    number = non_negative_integer(row, "question_id")
    answers = tuple(one["answer"] for one in row["answers"])
    majority, kind = row["multiple_choice_answer"], row["answer_type"]
    if not answers or not all(isinstance(word, str) for word in (*answers, majority, kind)):
        raise BadRecord("no answers, or a value that is not text")
    # Interned, since answers repeat.
    return number, (tuple(map(intern, answers)), intern(majority), intern(kind))


def held_out_images(ids: Iterable[int], count: int, seed: int) -> set[int]:
    """Return the `count` ids with the smallest digests.

    The digest is BLAKE2b (8 bytes) of the text "SEED:ID", where ID is the image id of COCO.
    """
    ranks = {n: hashlib.blake2b(f"{seed}:{n}".encode(), digest_size=8).digest() for n in ids}
    return set(sorted(ranks, key=ranks.__getitem__)[:count])


def image_keys(rows: ImageSplit) -> list[str]:
    store = rows.table.columns["image"]
    return list(dict.fromkeys(store.key(number) for number in rows.table.rows.tolist()))


def check_held_out(
    config: QuestionAnsweringDataConfig, measured: Sequence[str], progress: Progress
) -> None:
    """Check that a run is not evaluated on its own training images.

    If training and evaluation have different sources, images with the same names only cause a
    warning.

    Raises:
        ValueError: If the sources are the same, and training images of the run are evaluated.
    """
    assert config.held_out is not None
    run = Path(config.held_out).parents[1]
    own = open_run(run).data
    held = {*read_list(Path(config.held_out), None, Counts())}
    if own.validation_split != "held_out" or not any(name.startswith(DIVIDED) for name in held):
        return  # it was trained on no image of val2014
    trained = [name for name in measured if name.startswith(DIVIDED) and name not in held]
    if not trained:
        return
    share = f"{len(trained):,} of the {len(measured):,} images"
    if user_path(own.source).resolve() == user_path(config.source).resolve():
        raise ValueError(f"{run} was trained on {share} of this evaluation. Evaluate the run's "
                         f"validation images: --data.validation_split {own.validation_split} "
                         f"--data.validation_images {own.validation_images} "
                         f"--data.validation_seed {own.validation_seed}")  # fmt: skip
    progress.say(f"WARNING: {share} in {config.source} have the same names as training images "
                 f"of {run}, such as {trained[0]}: the run may have seen these images")  # fmt: skip
