"""A run is measured on what it held out, and on other data, but not unawares on its training."""

import json
import shutil
from pathlib import Path

from magneto.cli import main
from magneto.vision_language.questions import trained_on
from tests.unit.vision_language.small_tasks import question_task, run
from tests.unit.vision_language.vqa_folders import write_vqa

HELD, OTHER = "val2014/COCO_val2014_000000000001.jpg", "val2014/COCO_val2014_000000000002.jpg"


def evaluate(run: Path, *words: str, **data: object) -> int:
    settings = [f"--data.{name}={value}" for name, value in data.items()]
    return main(["evaluate", str(run), *words, *settings, "--json"])


def test_what_a_run_was_trained_on() -> None:
    assert trained_on([HELD, OTHER], [HELD], "held_out") == [OTHER]
    assert trained_on([HELD], [HELD, OTHER], "held_out") == []
    assert trained_on(["test2015/COCO_test2015_000000000002.jpg"], [HELD], "held_out") == []
    # Trained on train2014 alone; trained on another set.
    assert trained_on([HELD, OTHER], [HELD], "val2014") == []
    assert trained_on([HELD], ["test/images/0.png"], "held_out") == []


def test_training_questions_are_not_measured(tmp_path: Path, capsys) -> None:
    """Its own data: refused, with the settings that measure what was held out."""
    made = tmp_path / "run"
    run(question_task(tmp_path / "coco", validation_seed=3), made)
    wrong: list[dict[str, object]] = [
        {"validation_split": "val2014"}, {"validation_seed": 0}, {"validation_images": 3},
        {"validation_split": "val2014", "source": tmp_path / "coco" / ".." / "coco"},
    ]  # fmt: skip
    for data in wrong:
        assert evaluate(made, **data) == 2
        (line,) = [each for each in capsys.readouterr().err.splitlines() if "trained on" in each]
        assert "data.validation_split held_out, data.validation_images 2 and" in line
        assert "data.validation_seed 3 measure what it held out" in line
    right: list[dict[str, object]] = [
        {}, {"validation_images": 1}, {"validation_split": "test2015"}, {"image_folder": "coco"},
    ]  # fmt: skip
    for data in right:
        if "image_folder" in data:
            data["image_folder"] = tmp_path / "coco"
        assert evaluate(made, **data) == 0
        assert "trained on" not in capsys.readouterr().err


def test_other_data_is_measured(tmp_path: Path, capsys) -> None:
    """Images with the same names may have other questions: that is said, and measured."""
    made = tmp_path / "run"
    run(question_task(tmp_path / "coco"), made)
    shutil.copytree(tmp_path / "coco", tmp_path / "copy")
    other = ["--data", str(tmp_path / "copy")]
    assert evaluate(made, *other, validation_split="val2014") == 0
    said = capsys.readouterr()
    assert "accuracy" in json.loads(said.out)
    (line,) = [each for each in said.err.splitlines() if "trained on" in each]
    assert "4 of the 6 images" in line and "COCO_val2014_" in line
    assert evaluate(made, "--data", "builtin:shapes") == 0
    assert "trained on" not in capsys.readouterr().err


def test_a_run_that_validated_on_all(tmp_path: Path, capsys) -> None:
    """It was trained on train2014 alone: any part of val2014 measures it."""
    made = tmp_path / "run"
    write_vqa(tmp_path / "coco")
    run(question_task(tmp_path / "coco", validation_split="val2014"), made)
    assert evaluate(made, validation_split="held_out", validation_seed=5) == 0
    assert "trained on" not in capsys.readouterr().err
