"""Documents at the edges: characters at a cut, bytes that are no text, folders that change."""

import json
from pathlib import Path

import pytest

from magneto.data.counts import HALF_CHARACTERS, INVALID_UTF8, MALFORMED, Counts
from magneto.data.documents import (
    CUT_LINES,
    DOCUMENTS,
    PIECE_BYTES,
    documents_fingerprint,
    read_documents,
)


def read(source: str) -> tuple[str, Counts]:
    counts = Counts()
    return "".join(read_documents(source, "text", counts)), counts


@pytest.mark.parametrize("start", ["", "x", "xx", "xxx"])
@pytest.mark.parametrize("character", ["é", "東", "🙂", "\ufffd"])
def test_a_cut_never_splits_a_character(tmp_path: Path, start: str, character: str) -> None:
    text = start + character * (PIECE_BYTES // 2)
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    found, counts = read(str(tmp_path / "a.txt"))
    assert found == text
    assert (counts[INVALID_UTF8], counts[CUT_LINES]) == (0, 1)


def test_an_unfinished_character_at_the_end_of_a_cut_file_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * (PIECE_BYTES - 1) + "é".encode()[:1])
    found, counts = read(str(tmp_path / "a.txt"))
    assert found == "x" * (PIECE_BYTES - 1) + "\ufffd"
    assert counts[INVALID_UTF8] == 1


def test_replacement_characters_of_the_author_are_valid(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a \ufffd b\n", encoding="utf-8")
    assert read(str(tmp_path / "a.txt"))[1][INVALID_UTF8] == 0


def test_invalid_utf8_in_records_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ab\xff"}\n{"text": "good"}\n')
    found, counts = read(str(tmp_path / "a.jsonl"))
    assert found == "ab\ufffdgood"
    assert counts == {DOCUMENTS: 2, INVALID_UTF8: 1}


def test_a_line_nested_too_deeply_is_a_bad_record(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[" * 200_000 + '\n{"text": "good"}\n')
    found, counts = read(str(tmp_path / "a.jsonl"))
    assert (found, counts[MALFORMED]) == ("good", 1)


def test_a_local_hugging_face_folder_that_changed_is_another_source(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    path.write_text(json.dumps({"text": "one"}))
    source = f"hf:{tmp_path}"
    before = documents_fingerprint(source, "text")
    assert documents_fingerprint(source, "text") == before
    path.write_text(json.dumps({"text": "one more"}))
    assert documents_fingerprint(source, "text") != before


def test_half_a_character_in_a_record_is_replaced_and_counted(tmp_path: Path) -> None:
    lines = r'{"text": "bad \ud83d half"}', r'{"text": "\ud83d\ude00 whole"}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found, counts = read(str(tmp_path / "a.jsonl"))
    assert found == "bad \ufffd half😀 whole"
    assert counts == {DOCUMENTS: 2, HALF_CHARACTERS: 1}
