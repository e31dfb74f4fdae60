"""Which files of a folder are parallel text, and which language each is in."""

import gzip
from pathlib import Path

import pytest

from magneto.data.counts import Counts
from magneto.translation.files import LineFiles, open_files

MARK = "\ufeff"


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        pack = gzip.compress if name.endswith(".gz") else bytes
        (folder / name).write_bytes(pack(text.encode()))
    return folder


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {
        "a.en": f"{MARK}one\n{MARK}two\n", "a.de.gz": f"{MARK}eins\nzwei\n",
    })  # fmt: skip
    found = list(open_files(str(folder), None).read("de", "en", "train", Counts()))
    assert found == [("eins", "one"), ("zwei", f"{MARK}two")]


@pytest.mark.parametrize("others", [("train.log",), ("train.log", "train.py"), ("train.foo",)])
def test_logs_beside_a_table_are_no_languages(tmp_path: Path, others: tuple[str, ...]) -> None:
    files = {"train.tsv": "en\tde\none\teins\n", **dict.fromkeys(others, "a\nb\n")}
    text = open_files(str(write(tmp_path / "text", files)), None)
    assert text.pairs("train") == {("de", "en")}


def test_line_pairs_in_a_wanted_language_come_before_records(tmp_path: Path) -> None:
    records = {"train.tsv": "en\tde\none\teins\n"}
    folder = write(tmp_path / "text", {**records, "a.foo": "x\n", "a.bar": "y\n"})
    assert open_files(str(folder), None, frozenset({"en"})).languages == ["de", "en"]
    assert open_files(str(folder), None, frozenset({"foo", "bar"})).languages == ["bar", "foo"]
    write(folder, {"b.en": "one\n", "b.fr": "un\n"})
    assert open_files(str(folder), None, frozenset({"en"})).pairs("train") >= {("en", "fr")}
    bare = write(tmp_path / "bare", {"a.foo": "x\n", "a.bar": "y\n"})
    assert isinstance(open_files(str(bare), None, frozenset({"en"})), LineFiles)


@pytest.mark.parametrize("name", ["a.en.gz", "a.en.txt"])
def test_a_text_that_is_there_twice_is_an_error(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "text", {"a.en": "one\n", "a.de": "eins\n", name: "another\n"})
    for source in (folder, folder / "a"):
        with pytest.raises(
            ValueError, match=rf"two files for one text: .*a\.en and .*{name}; keep"
        ):
            open_files(str(source), None)


def test_records_that_are_there_twice_are_an_error(tmp_path: Path) -> None:
    text = "en\tde\none\teins\n"
    folder = write(tmp_path / "text", {"a.tsv": text, "a.tsv.gz": text})
    with pytest.raises(ValueError, match=r"two files for one text: .*a\.tsv and .*a\.tsv\.gz"):
        open_files(str(folder), None)
    assert open_files(str(folder / "a.tsv"), None).languages == ["de", "en"]
