"""VQA v2's own files: what is read, what is odd, and which images are held out."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from magneto.data.counts import MALFORMED, Counts
from magneto.vision.decoding import BrokenImage
from magneto.vision_language.question_answering.questions import (
    ANNOTATED_TWICE,
    DUPLICATES,
    EMPTY_QUESTIONS,
    UNANNOTATED,
    UNASKED,
)
from magneto.vision_language.question_answering.vqa_files import (
    held_out_images,
    image_id,
    is_vqa,
    joined,
    read_split,
)
from tests.vision_language.question_answering.folders import (
    annotated,
    image_file,
    write_split,
    write_vqa,
)


@pytest.mark.parametrize("inner", [".", "vqa", "annotations"])
def test_questions_meet_their_annotations_and_images(tmp_path: Path, inner: str) -> None:
    write_vqa(tmp_path, inner=inner)
    assert is_vqa(tmp_path) and not is_vqa(tmp_path / "train2014")
    counts = Counts()
    split = read_split(tmp_path, tmp_path, "val2014", counts)
    assert len(split) == 12 and not any(counts.values())
    first = split.questions[0]
    assert (first.number, first.text, first.majority) == (10010, "What colour is it?", "blue")
    assert first.answers == ("blue",) * 7 + ("The blue",) * 3
    assert (first.question_type, first.answer_type) == ("what colour", "other")
    assert image_id(split, first) == 1001
    assert split.open(0).pixels()[0, 0, 2] > 200 > split.open(2).pixels()[0, 0, 2]
    assert split.store.name(0) == str(image_file(tmp_path, "val2014", 1001))


def test_test_questions_have_no_answers(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    split = read_split(tmp_path, tmp_path, "test-dev2015", Counts())
    assert len(split) == 12 and not split.answered
    assert "test2015/COCO_test2015_000000002001.jpg" in split.store.name(0)


def test_odd_records_are_counted(tmp_path: Path) -> None:
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
    split = read_split(tmp_path, tmp_path, "train2014", counts)
    assert [question.text for question in split.questions] == ["a?", " "]
    assert counts[DUPLICATES] == 1 and counts[EMPTY_QUESTIONS] == 1
    assert counts[MALFORMED] == 4 + 3
    assert counts[UNANNOTATED] == 1 and counts[UNASKED] == 1
    assert counts[ANNOTATED_TWICE] == 1 and split.questions[0].majority == "x"
    with pytest.raises(BrokenImage, match="can't be read"):
        split.open(0)


def test_packed_files_are_read(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    for path in (tmp_path / "vqa").glob("*train2014*"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert len(read_split(tmp_path, tmp_path, "train2014", Counts())) == 12


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    path = tmp_path / "vqa" / "v2_mscoco_val2014_annotations.json"
    path.write_text(json.dumps({"questions": []}))
    with pytest.raises(ValueError, match=r'v2_mscoco_val2014.* no list of "annotations"'):
        read_split(tmp_path, tmp_path, "val2014", Counts())
    for broken in ("{", "[" * 100_000):
        path.write_text(broken)
        with pytest.raises(ValueError, match=r"v2_mscoco_val2014.* is not JSON"):
            read_split(tmp_path, tmp_path, "val2014", Counts())
    path.unlink()
    with pytest.raises(FileNotFoundError, match="v2_mscoco_val2014_annotations"):
        read_split(tmp_path, tmp_path, "val2014", Counts())


def test_held_out_images_are_those_of_the_published_rule() -> None:
    """The smallest digests: another order of the images, or more of them, keeps their ranks."""
    ids = list(range(1, 500))
    chosen = held_out_images(ids, 5, 0)
    digests = {
        number: hashlib.blake2b(b"0:%d" % number, digest_size=8).hexdigest() for number in ids
    }
    assert chosen == set(sorted(ids, key=digests.__getitem__)[:5])
    assert held_out_images(reversed(ids), 5, 0) == chosen
    assert held_out_images(ids, 9, 0) > chosen
    assert held_out_images(ids, 5, 1) != chosen
    assert held_out_images([1, 1, 2], 2, 0) == {1, 2}


def test_splits_are_joined(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    parts = [read_split(tmp_path, tmp_path, name, Counts()) for name in ("train2014", "val2014")]
    whole = joined(tmp_path, parts)
    assert len(whole) == 24 and len(whole.store) == 12
    assert [image_id(whole, question) for question in whole.questions[::2]] == [
        *range(1, 7), *range(1001, 1007),
    ]  # fmt: skip
