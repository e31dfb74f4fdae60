"""Every text pipeline reads every packing alike, and meets what is odd in the same way."""

import gzip
import json
import lzma
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from magneto.data import files
from magneto.data.documents import read_documents
from magneto.data.files import read_list
from magneto.data.problems import HALF_CHARACTERS, INVALID_UTF8, LONG_LINES, MALFORMED, Counts
from magneto.language.config import TRAIN, ClassificationDataConfig
from magneto.language.labelled_texts import read_tables, read_texts
from magneto.language.suites import SUITES, load_questions
from magneto.translation.text import open_parallel

PACK = {".gz": gzip.compress, ".xz": lzma.compress}
TEXTS = ["one", "two, “quoted”", "naïve 東京 🙂", "four\u2028still"]


@dataclass(frozen=True)
class Reader:
    """A pipeline and one of its forms.

    Attributes:
        name: Of its file.
        write: From texts to the file's lines.
        read: From path and counts to the texts.
        strict: Whether what is odd is an error.
    """

    name: str
    write: Callable[[list[str]], list[str]]
    read: Callable[[Path, Counts], list[str]]
    strict: bool = False


def documents(path: Path, counts: Counts) -> list[str]:
    return [line for text in read_documents(str(path), "text", counts) for line in text.split("\n")]


def rows(path: Path, counts: Counts) -> list[str]:
    return read_tables(str(path), TRAIN, ClassificationDataConfig(), counts)["train"].values("text")


def questions(path: Path, counts: Counts) -> list[str]:
    items = load_questions(SUITES["winogrande"], str(path)).items
    return [item.contexts[0].removesuffix(" a") for item in items]


def pairs(path: Path, counts: Counts) -> list[str]:
    source = path.with_name("p") if path.name.startswith("p.en") else path
    read = open_parallel(str(source), None).read("de", "en", "train", counts)
    return [english for german, english in read]


def objects(make: Callable[[str], dict]) -> Callable[[list[str]], list[str]]:
    return lambda texts: [json.dumps(make(text)) for text in texts]


def table(separator: str, *header: str, quote: str = "") -> Callable[[list[str]], list[str]]:
    def write(texts: list[str]) -> list[str]:
        cells = ([f"{quote}{text}{quote}", *"a" * (len(header) - 2), "1"] for text in texts)
        return [separator.join(header), *(separator.join(row) for row in cells)]

    return write


def grande(text: str) -> dict:
    return {"sentence": f"{text} _ b", "option1": "a", "option2": "b", "answer": "1"}


READERS = [
    Reader("a.txt", list, documents),
    Reader("b.csv", table(",", "text", "label", quote='"'), documents),
    Reader("c.tsv", table("\t", "text", "label"), rows),
    Reader("d.csv", table(",", "text", "label", quote='"'), rows),
    Reader("e.jsonl", objects(lambda text: {"text": text, "label": 1}), rows),
    Reader("winogrande.jsonl", objects(grande), questions, strict=True),
    Reader("p.en", list, pairs),
    Reader("q.tsv", table("\t", "en", "de"), pairs),
]
BY_NAME = {reader.name: reader for reader in READERS}
IN_RECORDS = [reader for reader in READERS if reader.name != "a.txt"]
OF_JSON = [reader for reader in READERS if reader.name.endswith(".jsonl")]


def each(readers: list[Reader]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("reader", readers, ids=lambda r: f"{r.read.__name__}-{r.name}")


def write(folder: Path, reader: Reader, content: bytes, packing: str = "") -> Path:
    """Write a file for a reader, and the other side of line pairs beside it."""
    (folder / "p.de").write_text("x\n" * max(1, len(content.split(b"\n")) - 1))
    path = folder / f"{reader.name}{packing}"
    path.write_bytes(PACK.get(packing, bytes)(content))
    return path


def written(reader: Reader, texts: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in reader.write(texts)).encode()


@each(READERS)
def test_texts_come_back(reader: Reader, tmp_path: Path) -> None:
    for packing, mark in (("", b""), (".gz", b"\xef\xbb\xbf"), (".xz", b"")):
        path, counts = write(tmp_path, reader, mark + written(reader, TEXTS), packing), Counts()
        assert [text for text in reader.read(path, counts) if text] == TEXTS
        path.unlink()
        assert set(+counts) <= {"documents", "rows"}, "nothing odd is there"


@pytest.mark.parametrize(
    ("how", "packing"),
    [("cut off", ".xz"), ("overwritten", ".gz"), ("not packed", ".gz"), ("another sum", ".gz")],
)
@each(READERS)
def test_damage_is_one_line(reader: Reader, how: str, packing: str, tmp_path: Path) -> None:
    content = written(reader, [f"{i} is {i * i}" for i in range(5000)])
    path = write(tmp_path, reader, content, packing)
    packed = path.read_bytes()
    third = len(packed) // 3
    path.write_bytes({
        "cut off": packed[:third],
        "overwritten": packed[:third] + b"\xff" * third + packed[2 * third :],
        "not packed": content,
        "another sum": packed[:-8] + b"\0" * 8,
    }[how])  # fmt: skip
    damage = r": damaged (gzip|xz) file \(.+\)$"
    if reader.strict:  # may meet what was unpacked wrongly first
        damage += r"|, line \d+: not"
    with pytest.raises(ValueError, match=rf"{path.name}({damage})") as caught:
        reader.read(path, Counts())
    assert "\n" not in str(caught.value)


@each(READERS)
def test_what_is_no_text_is_refused(reader: Reader, tmp_path: Path) -> None:
    path = write(tmp_path, reader, written(reader, TEXTS).decode().encode("utf-16"))
    with pytest.raises(ValueError, match=rf"{reader.name} is not text in UTF-8: it has NUL bytes"):
        reader.read(path, Counts())


@each(READERS)
def test_bytes_that_are_no_utf8(reader: Reader, tmp_path: Path) -> None:
    content = written(reader, ["first", "bad ?x", "last"]).replace(b"?", b"\xff")
    path, counts = write(tmp_path, reader, content), Counts()
    if reader.strict:
        with pytest.raises(ValueError, match=rf"{reader.name}, line \d: not UTF-8"):
            reader.read(path, counts)
        return
    found = [text for text in reader.read(path, counts) if text]
    assert found == ["first", "bad \ufffdx", "last"]
    assert counts[INVALID_UTF8] == 1


@each(OF_JSON)
def test_halves_of_a_character_are_replaced(reader: Reader, tmp_path: Path) -> None:
    content = written(
        reader,
        ["half \ud83d", "whole 😀"],
    )
    path, counts = write(tmp_path, reader, content), Counts()
    assert b"\\ud83d" in content
    assert reader.read(path, counts) == ["half \ufffd", "whole 😀"]
    assert reader.strict or counts[HALF_CHARACTERS] == 1


@each(IN_RECORDS)
def test_carriage_returns_alone_are_no_lines(reader: Reader, tmp_path: Path) -> None:
    path = write(tmp_path, reader, written(reader, TEXTS, "\r"))
    with pytest.raises(ValueError, match=rf"{reader.name}: lines end in a carriage return"):
        reader.read(path, Counts())


@each(READERS)
def test_an_empty_file(reader: Reader, tmp_path: Path) -> None:
    path = write(tmp_path, reader, b"", ".gz")
    (tmp_path / "p.de").write_text("")
    messages = {
        "c.tsv": "has no column 'text'", "d.csv": "has no column 'text'",
        "e.jsonl": "has no records", "q.tsv": "has no header with two languages",
    }  # fmt: skip
    message = "no records" if reader.strict else messages.get(reader.name)
    if message is None:
        assert reader.read(path, Counts()) == []
    else:
        with pytest.raises(ValueError, match=message):
            reader.read(path, Counts())


@each(READERS)
def test_a_file_that_is_not_there(reader: Reader, tmp_path: Path) -> None:
    path = write(tmp_path, reader, written(reader, TEXTS))
    wrong = str(path.with_name(reader.name.replace(".", "s.", 1)))
    (tmp_path / "p.de").unlink()
    with pytest.raises((FileNotFoundError, ValueError), match=rf"did you mean \S*{reader.name}\?"):
        if reader.read is rows:
            read_texts(ClassificationDataConfig(source=wrong))
        elif reader.read is pairs:
            open_parallel(wrong, None)
        else:
            reader.read(Path(wrong), Counts())


@each(IN_RECORDS)
def test_a_line_that_is_too_long(reader: Reader, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "LINE_BYTES", 1000)
    path, counts = write(tmp_path, reader, written(reader, ["first", "x" * 5000, "last"])), Counts()
    if reader.strict:
        with pytest.raises(ValueError, match=rf"{reader.name}, line \d: longer than 1,000 bytes"):
            reader.read(path, counts)
        return
    assert [text for text in reader.read(path, counts) if text] == ["first", "last"]
    assert counts[LONG_LINES] == 1


@pytest.mark.parametrize("packing", ["", ".gz"])
@each([reader for reader in IN_RECORDS if not reader.strict])
def test_a_long_line_does_not_fill_the_memory(
    reader: Reader, packing: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(files, "LINE_BYTES", 1 << 16)
    path = write(tmp_path, reader, written(reader, ["first", "x" * (1 << 24)]), packing)
    tracemalloc.start()
    try:
        reader.read(path, Counts())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 21


@each(OF_JSON)
@pytest.mark.parametrize("line", ["{", "3", "null", "[" * 100_000, '"text"'])
def test_a_line_that_is_no_object(reader: Reader, line: str, tmp_path: Path) -> None:
    content = written(reader, ["first"]) + f"\n  \n{line}\n".encode() + written(reader, ["last"])
    path, counts = write(tmp_path, reader, content), Counts()
    if reader.strict:
        with pytest.raises(ValueError, match=r"line 4: (not|nested)"):
            reader.read(path, counts)
    else:
        assert reader.read(path, counts) == ["first", "last"]
        assert counts[MALFORMED] == 1


@each([BY_NAME["d.csv"]])
def test_a_row_that_cannot_be_parsed(reader: Reader, tmp_path: Path) -> None:
    content = written(reader, ["first", 'x"x', "last"])
    path, counts = write(tmp_path, reader, content), Counts()
    assert reader.read(path, counts) == ["first", "last"]
    assert counts[MALFORMED] == 1


@each([BY_NAME["d.csv"]])
def test_lines_that_a_quote_swallows_are_counted(reader: Reader, tmp_path: Path) -> None:
    """Also where the next cell in quotes seems to close it; a cell of any length is none."""
    head, *rows = written(reader, ["first", "x" * 200_000, "second", "third"]).splitlines(True)
    for lost, left in (b'"', ["first", "x" * 200_000]), (b'"second', ["first", "x" * 200_000]):
        content = b"".join([head, *rows]).replace(b'second"', b"second")
        content = content if lost == b'"' else content.replace(b'"third"', b"third")
        path, counts = write(tmp_path, reader, content), Counts()
        assert reader.read(path, counts) == left and counts[MALFORMED] == 2
        assert counts.named[MALFORMED][0].startswith(f"{path}, line 4: ")


def test_a_list_that_is_nested_too_deeply(tmp_path: Path) -> None:
    """Also one that is read and then searched for lone surrogates."""
    for name, text in (("a", "[" * 100_000), ("b", '["\\ud800",' + "[" * 900 + "]" * 901)):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match="nested too deeply"):
            read_list(tmp_path / name, None, Counts())


def test_halves_of_a_character_in_a_list(tmp_path: Path) -> None:
    """As bytes they are no UTF-8; spelt, they are replaced in names too."""
    (tmp_path / "a").write_bytes(b'[{"text": "\xed\xa0\xbd"}]')
    with pytest.raises(ValueError, match="a is not JSON: 'utf-8' codec can't decode"):
        read_list(tmp_path / "a", None, Counts())
    (tmp_path / "b").write_text(r'[{"te\ud83dxt": 1}]')
    assert read_list(tmp_path / "b", None, Counts()) == [{"te\ufffdxt": 1}]
