"""The benchmark of pre-training on images with texts: the questions it takes, and a whole run."""

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("PIL")

from benchmarks import vision_language_pretraining
from benchmarks.vision_language_pretraining import COUNTED, few_questions, main
from magneto.data.counts import Counts
from magneto.files import read_json
from magneto.vision_language.question_answering.easy_vqa import read_rows


def test_so_many_scenes_of_each_question_and_answer(tmp_path: Path) -> None:
    place = few_questions(3, 1, tmp_path)
    rows = read_rows(place / "train" / "questions.json", Counts())
    found = Counter((question, answer) for _, question, answer, _ in rows)
    assert len(found) == 96 and set(found.values()) == {3}
    assert all((place / "train" / "images" / f"{image}.png").is_file() for *_, image in rows)
    assert len(read_rows(place / "test" / "questions.json", Counts())) == 768
    other = read_rows(few_questions(3, 2, tmp_path) / "train" / "questions.json", Counts())
    assert {image for *_, image in other} != {image for *_, image in rows}


@pytest.mark.slow
def test_two_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision_language_pretraining, "RESULTS", tmp_path)
    words = "--counts 1 --seeds 1 --rates 1e-3 --poolings first mask_token --steps 2"
    words += " --pretraining-steps 2 --runs"
    main([*words.split(), str(tmp_path / "runs")])
    curves = read_json(tmp_path / "vision-language-pretraining.json")["curves"]
    assert list(curves) == ["first", "mask_token"]
    for rows in curves.values():
        found = [(row[COUNTED], row["arm"]) for row in rows]
        assert found == [(1, "pre-trained"), (1, "from scratch")]
    text = (tmp_path / "vision-language-pretraining.md").read_text()
    assert "## model.pooling mask_token\n\n| scenes for each |" in text
