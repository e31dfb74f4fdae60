"""Training and validation questions of every kind of source."""

from pathlib import Path

import pytest

from magneto.vision_language.question_answering.config import QuestionAnsweringDataConfig
from magneto.vision_language.question_answering.questions import IMAGE_MISSING, WITHOUT_IMAGE
from magneto.vision_language.question_answering.sources import QuestionSplits, read_source
from magneto.vision_language.question_answering.vqa_files import held_out_images
from tests.vision_language.question_answering.folders import image_file, write_vqa


def read(source: str | Path, **data: object) -> QuestionSplits:
    return read_source(QuestionAnsweringDataConfig(source=str(source), **data))  # type: ignore[arg-type]


def test_built_in_questions() -> None:
    """Their answers are listed as they are: "none" is not turned into "0"."""
    found = read("builtin:shapes")
    assert len(found.train) > 5000 and len(found.validation) > 500
    assert {question.majority for question in found.train.questions} == set(found.answers)
    kinds = {question.answer_type for question in found.train.questions}
    assert kinds == {"yes/no", "number", "other"}


def test_a_split_of_another_set_is_refused() -> None:
    """Scores of other questions would be taken for those of the test split."""
    with pytest.raises(ValueError, match=r"test2015 is of VQA v2, and .* is another set"):
        read("builtin:shapes", validation_split="test2015")


def test_vqa_is_split_by_images(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    found = read(tmp_path, validation_images=2)
    held = held_out_images(range(1001, 1007), 2, 0)
    names = {f"val2014/COCO_val2014_{image:012d}.jpg" for image in held}
    assert set(found.validation.image_keys()) == names and len(found.validation) == 4
    assert len(found.train.image_keys()) == 10 and len(found.train) == 20
    assert len(found.majorities) == 24  # of training and validation annotations, as is the rule
    assert not found.answers
    other = read(tmp_path, validation_images=2, validation_seed=3)
    assert set(other.validation.image_keys()) != names


def test_a_split_without_answers_is_read_alone(tmp_path: Path) -> None:
    """Training and validation questions need not be there, nor any of their images."""
    write_vqa(tmp_path)
    for path in (*tmp_path.glob("vqa/*2014*"), *tmp_path.glob("*2014/*.jpg")):
        path.unlink()
    for split in ("test2015", "test-dev2015"):
        found = read(tmp_path, validation_split=split)
        assert len(found.validation) == 12 and not len(found.train) and not found.majorities
    with pytest.raises(FileNotFoundError, match=r"no file .*train2014_questions"):
        read(tmp_path)


def test_images_elsewhere_and_missing(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    (tmp_path / "images").mkdir()
    for name in ("train2014", "val2014", "test2015"):
        (tmp_path / name).rename(tmp_path / "images" / name)
    with pytest.raises(ValueError, match=r"0 questions to train on.*whose image is missing"):
        read(tmp_path)
    for split, first in (("held_out", "train2014_000000000001"), ("test2015", "test2015_0000000")):
        sought = rf"there is no image .*COCO_{first}.*jpg: name the folder.*data.image_folder"
        with pytest.raises(ValueError, match=sought):
            read(tmp_path, validation_split=split)
    found = read(tmp_path, image_folder=str(tmp_path / "images"), validation_split="val2014")
    assert len(found.train) == 12 and not found.counts[WITHOUT_IMAGE]
    image_file(tmp_path / "images", "val2014", 1002).unlink()
    found = read(tmp_path, image_folder=str(tmp_path / "images"), validation_split="val2014")
    assert len(found.validation) == 12 and found.counts[IMAGE_MISSING] == 2
    assert not found.missing  # what is validated on stays
    found = read(tmp_path, image_folder=str(tmp_path / "images"), validation_images=1)
    (name,) = found.missing
    assert name == str(image_file(tmp_path / "images", "val2014", 1002))
    for path in (tmp_path / "images" / "val2014").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"12 questions to train on.*no image .*COCO_val2014"):
        read(tmp_path, image_folder=str(tmp_path / "images"), validation_split="val2014")
