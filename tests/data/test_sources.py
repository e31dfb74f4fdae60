"""Reading at the edges: characters at a cut, bytes that are no text, folders that change."""

import json
import logging
from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.data.sources import LINE_BYTES, Counts, read_documents, source_fingerprint
from magneto.language.classification.config import ClassificationDataConfig
from magneto.language.classification.data import read_texts
from magneto.language.in_context.files import load_questions
from magneto.language.in_context.suites import SUITES


def read(source: str) -> tuple[str, Counts]:
    counts = Counts()
    return "".join(read_documents(source, "text", counts)), counts


@pytest.mark.parametrize("start", ["", "x", "xx", "xxx"])
@pytest.mark.parametrize("character", ["é", "東", "🙂", "\ufffd"])
def test_a_cut_never_splits_a_character(tmp_path: Path, start: str, character: str) -> None:
    text = start + character * (LINE_BYTES // 2)
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    found, counts = read(str(tmp_path / "a.txt"))
    assert found == text
    assert (counts.invalid_utf8, counts.long_lines) == (0, 1)


def test_an_unfinished_character_at_the_end_of_a_cut_file_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * (LINE_BYTES - 1) + "é".encode()[:1])
    found, counts = read(str(tmp_path / "a.txt"))
    assert found == "x" * (LINE_BYTES - 1) + "\ufffd"
    assert counts.invalid_utf8 == 1


def test_replacement_characters_of_the_author_are_valid(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a \ufffd b\n", encoding="utf-8")
    assert read(str(tmp_path / "a.txt"))[1].invalid_utf8 == 0


def test_invalid_utf8_in_records_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ab\xff"}\n{"text": "good"}\n')
    found, counts = read(str(tmp_path / "a.jsonl"))
    assert found == "ab\ufffdgood"
    assert (counts.documents, counts.invalid_utf8, counts.bad_records) == (2, 1, 0)


def test_a_line_nested_too_deeply_is_a_bad_record(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[" * 200_000 + '\n{"text": "good"}\n')
    found, counts = read(str(tmp_path / "a.jsonl"))
    assert (found, counts.bad_records) == ("good", 1)


def test_a_local_hugging_face_folder_that_changed_is_another_source(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    path.write_text(json.dumps({"text": "one"}))
    source = f"hf:{tmp_path}"
    before = source_fingerprint(source, "text")
    assert source_fingerprint(source, "text") == before
    path.write_text(json.dumps({"text": "one more"}))
    assert source_fingerprint(source, "text") != before


def test_half_a_character_in_a_record_is_replaced_and_counted(tmp_path: Path) -> None:
    lines = r'{"text": "bad \ud83d half"}', r'{"text": "\ud83d\ude00 whole"}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found, counts = read(str(tmp_path / "a.jsonl"))
    assert found == "bad \ufffd half😀 whole"
    assert (counts.documents, counts.invalid_utf8) == (2, 1)


@pytest.mark.parametrize("kind", ["documents", "labelled", "one split", "questions"])
def test_a_set_that_cannot_be_reached_is_one_line(kind: str, monkeypatch, caplog) -> None:
    datasets = pytest.importorskip("datasets")

    def fail(*given: object, **named: object) -> None:
        logging.getLogger("huggingface_hub.utils").warning("retrying")
        raise ConnectionError("not there\nand more")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr(datasets, "get_dataset_split_names", fail)
    with pytest.raises(ConfigError) as caught:
        if kind == "documents":
            read("hf:some/set")
        elif kind == "questions":
            load_questions(SUITES["copa"], "hf:some/set")
        else:
            source = "hf:some/set" + ("::test" if kind == "one split" else "")
            read_texts(ClassificationDataConfig(source=source))
    [line] = caught.value.lines
    assert line.startswith("cannot load hf:some/set") and "(not there)" in line and "--data" in line
    assert not caplog.records
