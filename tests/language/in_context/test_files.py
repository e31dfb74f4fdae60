"""Questions from folders and files: found by name and split, mistakes in one line."""

import gzip
import json
from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.language.suites import SUITES, Questions, load_questions

GRANDE = {"sentence": "The cup missed _ again.", "option1": "a", "option2": "b", "answer": "1"}
GRAD = {"sentence": "I saw [MASK] again.", "choices": ["Ann", "Eve"], "answer": "Eve"}
STORY = {f"InputSentence{n}": "So." for n in range(1, 5)} | {
    "RandomFifthSentenceQuiz1": "Yes, sir.",
    "RandomFifthSentenceQuiz2": "No.",
    "AnswerRightEnding": "1",
}


def write(path: Path, *records: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def load(suite: str, where: Path) -> Questions:
    return load_questions(SUITES[suite], str(where))


def test_splits_are_told_from_names(tmp_path: Path) -> None:
    write(tmp_path / "winogrande_1.1" / "train_xl.jsonl", *[GRANDE] * 3)
    write(tmp_path / "winogrande_1.1" / "dev.jsonl.gz", GRANDE)
    write(tmp_path / "other" / "wsc285.jsonl", GRAD, GRAD)
    write(tmp_path / "other" / "wsc273.jsonl", GRAD)
    found = load("winogrande", tmp_path)
    assert (len(found.items), len(found.pool or [])) == (1, 3)
    assert found.source.endswith("dev.jsonl.gz")
    assert found.pool_source.endswith("train_xl.jsonl")
    found = load("winograd", tmp_path)
    assert (len(found.items), found.pool) == (2, None)
    assert found.pool_source == "the other questions"
    assert len(load("wsc273", tmp_path).items) == 1


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_storycloze_is_asked_on_test_and_shown_from_validation(tmp_path: Path, ending: str) -> None:
    mark = "," if ending == ".csv" else "\t"
    quote = '"' * (ending == ".csv")  # in a .tsv quotes are text
    row = mark.join(f"{quote}{value}{quote}" for value in STORY.values())
    for split, count in (("val", 1), ("test", 2)):
        name = f"cloze_test_{split}__spring2016 - cloze_test_ALL_{split}{ending}"
        (tmp_path / name).write_text(mark.join(STORY) + "\n" + f"{row}\n" * count)
    found = load("storycloze", tmp_path)
    assert (len(found.items), len(found.pool or [])) == (2, 1)
    assert found.items[0].solved == "So. So. So. So. Yes, sir."


def test_a_file_is_taken_whatever_its_name(tmp_path: Path) -> None:
    assert len(load("winogrande", write(tmp_path / "mine.jsonl", GRANDE)).items) == 1


def test_two_candidates_are_a_question_to_the_user(tmp_path: Path) -> None:
    write(tmp_path / "winogrande_dev.jsonl", GRANDE)
    write(tmp_path / "winogrande_xs" / "val.jsonl", GRANDE)
    write(tmp_path / "winogrande" / "val.jsonl", GRANDE)
    with pytest.raises(ConfigError, match="two validation files for winogrande"):
        load("winogrande", tmp_path)


def test_what_is_missing_is_named_and_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "winogrande_dev.jsonl", GRANDE)
    with pytest.raises(ConfigError, match=r"winograd in .*has winogrande.*wsc285\.jsonl"):
        load("winograd", tmp_path)
    with pytest.raises(ConfigError, match=r"no file or folder .*did you mean .*dev\.jsonl"):
        load("winogrande", tmp_path / "winogrande_de.jsonl")
    with pytest.raises(ConfigError, match="on the hub: give --data"):
        load_questions(SUITES["storycloze"], None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (json.dumps(GRANDE | {"answer": ""}), "record 2"),
        (json.dumps({"sentence": "a _ b"}), "record 2: no field 'option1'"),
        ("{", "line 2: not JSON"),
        ("3", "line 2: not a JSON object"),
        ("[" * 200_000, "line 2: nested too deeply"),
    ],
)
def test_a_bad_record_is_never_left_out(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", GRANDE)
    path.write_text(path.read_text() + line)
    with pytest.raises(ValueError, match=message):
        load("winogrande", path)


def test_an_empty_file_is_no_suite(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no records"):
        load("winogrande", write(tmp_path / "a.jsonl"))


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", GRAD | {"choices": ["Ann", "Eve", "\ud83d"]})
    assert "\\ud83d" in path.read_text()
    assert "\ufffd" in load("wsc273", path).items[0].contexts[2]


@pytest.mark.parametrize("ending", [".jsonl", ".tsv", ".csv.gz"])
def test_a_mark_of_byte_order_is_no_text(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"winogrande{ending}"
    separator = "\t" if "tsv" in ending else ","
    rows = [separator.join(GRANDE), separator.join(GRANDE.values())]
    text = json.dumps(GRANDE) if ending == ".jsonl" else "\r\n".join(rows)
    raw = text.encode("utf-8-sig")
    path.write_bytes(gzip.compress(raw) if ending.endswith(".gz") else raw)
    assert len(load("winogrande", path).items) == 1


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_bytes_that_are_no_utf8_are_named_with_their_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"winogrande{ending}"
    path.write_bytes(json.dumps(GRANDE).encode() + b"\n\xe9\n")
    with pytest.raises(ValueError, match=rf"winogrande\{ending}, line 2: not UTF-8"):
        load("winogrande", path)
