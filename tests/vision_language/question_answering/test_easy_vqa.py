"""easy-VQA in both of its layouts."""

import json
from pathlib import Path

import numpy as np
import pytest

from magneto.data.counts import MALFORMED, Counts
from magneto.vision_language.question_answering.easy_vqa import (
    is_easy_vqa,
    listed_answers,
    read_split,
)
from magneto.vision_language.question_answering.questions import MISSING
from tests.vision_language.question_answering.folders import write_easy


@pytest.mark.parametrize("packed", [True, False])
def test_questions_and_images(tmp_path: Path, packed: bool) -> None:
    write_easy(tmp_path, packed)
    assert is_easy_vqa(tmp_path) and not is_easy_vqa(tmp_path / "none")
    assert listed_answers(tmp_path) == ("red", "blue", "yes", "no")
    train, test = (read_split(tmp_path, name, Counts()) for name in ("train", "test"))
    assert len(train) == len(test) == 8
    first, second = test.questions[2:4]
    assert first.text == "what color is it?" and first.answers == ("blue",) * 10
    assert (first.answer_type, second.answer_type) == ("other", "yes/no")
    assert np.array_equal(test.open(2).pixels()[0, 0], (30, 30, 220))
    assert "test" in test.store.name(test.questions[2].image)


def test_what_is_odd(tmp_path: Path) -> None:
    write_easy(tmp_path, packed=True)
    rows = [["a?", "yes", 0], ["b?", "yes"], ["c?", "yes", "0"], None, ["d?", "no", 77]]
    (tmp_path / "test_questions.json").write_text(json.dumps(rows))
    counts = Counts()
    split = read_split(tmp_path, "test", counts)
    assert counts[MALFORMED] == 3
    assert [question.image == MISSING for question in split.questions] == [False, True]
    assert split.missing.tolist() == [False, True]
    (tmp_path / "test_questions.json").write_text("{}")
    with pytest.raises(ValueError, match="has no list"):
        read_split(tmp_path, "test", Counts())
    (tmp_path / "test_questions.json").unlink()
    with pytest.raises(FileNotFoundError, match="test_questions"):
        read_split(tmp_path, "test", Counts())
