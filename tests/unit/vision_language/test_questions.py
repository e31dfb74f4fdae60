"""Questions of every kind of source: VQA v2's files, plain tables, rendered scenes."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from magneto.data.problems import MALFORMED, Counts, DataProblems
from magneto.vision_language.config import QuestionAnsweringDataConfig
from magneto.vision_language.questions import (
    ANNOTATED_TWICE,
    DUPLICATES,
    EMPTY_QUESTIONS,
    UNANNOTATED,
    UNASKED,
    Questions,
    held_out_images,
    image_keys,
    load_questions,
    read_split,
)
from magneto.vision_language.tables import LOST, MISSING
from tests.unit.vision.image_files import write
from tests.unit.vision_language.folders import (
    COLOURS,
    annotated,
    image_file,
    png,
    write_split,
    write_vqa,
)


def load(source: str | Path, problems: DataProblems | None = None, **data: Any) -> Questions:
    config = QuestionAnsweringDataConfig(source=str(source), **data)
    return load_questions(config, problems or DataProblems())


def vqa(folder: Path, **data: Any) -> Questions:
    return load(folder, None, **{"least_answer_count": 1, **data})


def records(folder: Path, count: int = 12) -> list[dict[str, Any]]:
    """Two questions about each of some images, red and blue ones."""
    found: list[dict[str, Any]] = []
    for number in range(count):
        colour = ("red", "blue")[number % 2]
        write(folder / f"{number}.png", png(COLOURS[colour]))
        found += [{"image": f"{number}.png", "question": "What colour?", "answer": colour.title()},
                  {"image": f"{number}.png", "question": "Is it red?",
                   "answer": "yes" if colour == "red" else "no"}]  # fmt: skip
    return found


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    return write(path, "\n".join(map(json.dumps, rows)).encode())


def test_a_plain_table(tmp_path: Path) -> None:
    """One answer counts as ten that agree, as it is written; images are held out whole."""
    found = load(write_table(tmp_path / "all.jsonl", records(tmp_path)), validation_fraction=0.3)
    assert found.answers == ["Blue", "Red", "no", "yes"] and found.answerable.all()
    assert len(found.train) + len(found.validation) == 24
    assert not {*image_keys(found.train)} & {*image_keys(found.validation)}
    for rows, targets in ((found.train, found.train_targets),
                          (found.validation, found.validation_targets)):  # fmt: skip
        assert len(rows) > 1 and (targets.dense(range(len(rows))).max(1) == 1).all()
        both = zip(rows.values("majority"), rows.values("kind"), strict=True)
        for index, (said, kind) in enumerate(both):
            red = rows.open(index)[0].pixels()[0, 0, 0] > 200
            assert said in (("Red", "yes") if red else ("Blue", "no"))
            assert kind == ("yes/no" if said in ("yes", "no") else "other")


def test_a_list_of_answers_is_of_annotators(tmp_path: Path) -> None:
    """As VQA's ten: known answers are normalised; objects with "answer" are understood, too."""
    rows = records(tmp_path, 4)
    for row in rows:
        said = row.pop("answer")
        row["answers"] = [said] * 7 + [f"The {said}"] * 3
    rows[0]["answers"] = [{"answer": word} for word in rows[0]["answers"]]
    path = write_table(tmp_path / "all.jsonl", rows)
    found = load(path, validation_source=str(path), answer_lookup="normalised")
    assert found.answers == ["red", "yes", "blue", "no"]
    assert found.train.values("answers")[0] == ("Red",) * 7 + ("The Red",) * 3
    assert found.coverage == (pytest.approx(0.35), 1.0)


def test_odd_rows_of_a_table_are_counted(tmp_path: Path) -> None:
    rows = records(tmp_path)
    odd = [{**rows[0], "question": 7}, {**rows[0], "answer": ""}, {**rows[0], "answer": None},
           {**rows[0], "image": ""}, {**rows[0], "answer": [[{"answers": 1}]]},
           {**rows[0], "image": "gone.png"}, {**rows[1], "image_id": 99}]  # fmt: skip
    problems = DataProblems()
    path = write_table(tmp_path / "all.jsonl", [*rows, *odd])
    found = load(path, problems, validation_source=str(path), validation_fraction=0.3)
    assert len(found.train) == 24 + 1 and len(found.validation) == 24 + 2
    assert found.counts[MALFORMED] == 4 and found.counts[MISSING] == found.counts[LOST] == 1
    assert problems.describe() == "missing image: 1"


def test_columns_have_the_names_that_are_given(tmp_path: Path) -> None:
    rows = records(tmp_path)
    path = write_table(tmp_path / "f.jsonl", [{"p": r["image"], "q": r["question"],
                                               "a": r["answer"]} for r in rows])  # fmt: skip
    with pytest.raises(ValueError, match=r"no column 'question'.*question_column"):
        load(path, image_column="p")
    named = {"image_column": "p", "question_column": "q", "answer_column": "a"}
    assert len(load(path, **named).train) > 12


def test_vqa_is_split_by_images(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    found = vqa(tmp_path, validation_images=2)
    held = held_out_images(range(1001, 1007), 2, 0)
    names = {f"val2014/COCO_val2014_{image:012d}.jpg" for image in held}
    assert {*image_keys(found.validation)} == names and len(found.validation) == 4
    assert len(image_keys(found.train)) == 10 and len(found.train) == 20
    # Scores of other questions would be taken for those of the test split.
    with pytest.raises(ValueError, match=r"test2015 needs VQA v2"):
        load("builtin:shapes", validation_split="test2015")


def test_questions_meet_their_annotations_and_images(tmp_path: Path) -> None:
    write_vqa(tmp_path, inner="annotations")
    found = vqa(tmp_path, validation_split="val2014")
    assert (len(found.train), len(found.validation)) == (12, 12)
    rows = found.validation
    first = rows.table[0]
    assert first["answers"] == ("blue",) * 7 + ("The blue",) * 3
    assert (first["id"], first["question"], first["majority"], first["kind"]) == (
        10010, "What colour is it?", "blue", "other",
    )  # fmt: skip
    assert rows.name(0) == str(image_file(tmp_path, "val2014", 1001))
    assert rows.open(0)[0].pixels()[0, 0, 2] > 200 > rows.open(2)[0].pixels()[0, 0, 2]


def test_images_elsewhere_and_missing(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    (tmp_path / "images").mkdir()
    for name in ("train2014", "val2014"):
        (tmp_path / name).rename(tmp_path / "images" / name)
    with pytest.raises(
        ValueError, match=r"missing, such as .*COCO_train2014_0.*1\.jpg.*image_folder"
    ):
        vqa(tmp_path)
    found = vqa(tmp_path, image_folder=str(tmp_path / "images"), validation_split="val2014")
    assert not found.counts[LOST] and not found.counts[MISSING]


def test_odd_records_of_vqa_are_counted(tmp_path: Path) -> None:
    questions = [
        {"image_id": 1, "question": "a?", "question_id": 1},
        {"image_id": 1, "question": "b?", "question_id": 1},  # its id was there
        {"image_id": 1, "question": " ", "question_id": 2},  # no words
        {"image_id": "x", "question": "c?", "question_id": 3},
        {"image_id": float("inf"), "question": "c?", "question_id": 3},
        {"image_id": 1, "question": None, "question_id": 4},
        7,
        {"image_id": 2, "question": "d?", "question_id": 5},  # nobody answered
    ]
    annotations = [
        annotated(1, 1, ["x"] * 10, "x"), annotated(2, 1, ["y"], "y"),
        annotated(1, 1, ["z"] * 10, "z"),  # there was one
        annotated(9, 1, ["x"], "x"), {"question_id": 5, "answers": []}, {"question_id": 6}, "z",
    ]  # fmt: skip
    write_split(tmp_path, "train2014", questions, annotations)
    counts = Counts()
    found = read_split(tmp_path, "train2014", counts)
    assert [(question, majority) for _, question, _, majority, *_ in found] == [
        ("a?", "x"), (" ", "y")
    ]  # fmt: skip
    expected = {DUPLICATES: 1, EMPTY_QUESTIONS: 1, MALFORMED: 7, UNANNOTATED: 1, UNASKED: 1,
                ANNOTATED_TWICE: 1}  # fmt: skip
    assert {kind: counts[kind] for kind in expected} == expected
    for path in tmp_path.glob("*.json"):
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert read_split(tmp_path, "train2014", Counts()) == found


def test_held_out_images_are_those_of_the_published_rule() -> None:
    """The smallest digests: another order of the images, or more of them, keeps their ranks."""
    ids = range(1, 500)
    digest = {n: hashlib.blake2b(b"0:%d" % n, digest_size=8).hexdigest() for n in ids}
    chosen = held_out_images(ids, 5, 0)
    assert chosen == set(sorted(ids, key=digest.__getitem__)[:5])
    assert held_out_images(reversed(ids), 5, 0) == chosen != held_out_images(ids, 5, 1)
