"""Records in several languages: every language of a file is found, and what is left out counted."""

import json
from pathlib import Path

from magneto.data.counts import HALF_CHARACTERS, INVALID_UTF8, MALFORMED, Counts
from magneto.translation.config import LACKING, Texts
from magneto.translation.records import RecordFiles

Records = list[dict[str, str]]
LATE = [*({"en": f"e{i}", "de": f"d{i}"} for i in range(1500)), {"en": "late", "fr": "tard"}]


def jsonl(path: Path, records: Records) -> Path:
    path.write_text("".join(json.dumps({"translation": r}) + "\n" for r in records))
    return path


def read(text: RecordFiles, first: str, second: str) -> tuple[list[Texts], Counts]:
    counts = Counts()
    return list(text.read(first, second, "train", counts)), counts


def test_a_language_that_comes_late_is_found_and_what_lacks_it_counted(tmp_path: Path) -> None:
    text = RecordFiles([jsonl(tmp_path / "a.jsonl", LATE)], None)
    assert text.languages == ["de", "en", "fr"]
    found, counts = read(text, "en", "fr")
    assert found == [("late", "tard")]
    assert counts == {LACKING: 1500}
    assert "1,500 records without both languages" in counts.describe("pairs")
    found, counts = read(text, "de", "en")
    assert len(found) == 1500 and counts == {LACKING: 1}
    chosen = RecordFiles(text.files, ("en", "fr"))
    assert chosen.languages == text.languages and chosen.pairs("train") == {("en", "fr")}


def test_a_table_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("\ufeffen\tde\none\teins\n")
    assert read(RecordFiles([tmp_path / "a.tsv"], None), "en", "de")[0] == [("one", "eins")]
    (tmp_path / "b.en-de.tsv").write_text("\ufeffone\teins\ntwo\tzwei\n")
    found, _ = read(RecordFiles([tmp_path / "b.en-de.tsv"], None), "en", "de")
    assert found == [("one", "eins"), ("two", "zwei")]


def test_a_table_with_a_bad_first_line_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "b.en-de.tsv").write_bytes(b"one\xff\teins\n")
    found, counts = read(RecordFiles([tmp_path / "b.en-de.tsv"], None), "en", "de")
    assert found == [("one\ufffd", "eins")] and counts == {INVALID_UTF8: 1}


def test_a_line_nested_too_deeply_is_a_bad_record(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", LATE[:2])
    path.write_text("[" * 200_000 + "\n" + path.read_text())
    found, counts = read(RecordFiles([path], None), "en", "de")
    assert len(found) == 2 and counts == {MALFORMED: 1}


def test_half_a_character_is_replaced_and_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"en": "a \ud83d", "de": "b \U0001f600"}, *LATE[:1]])
    found, counts = read(RecordFiles([path], None), "en", "de")
    assert found == [("a \ufffd", "b \U0001f600"), ("e0", "d0")]
    assert counts == {HALF_CHARACTERS: 1}
