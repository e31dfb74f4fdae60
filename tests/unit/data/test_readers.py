"""Every text pipeline reads every packing alike, and meets what is odd in the same way.

What is no text is named.
"""

import bz2
import gzip
import json
import lzma
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from magneto.data import files
from magneto.data.documents import read_documents, source_files
from magneto.data.files import has_ending, open_text, read_lines, read_list, stream_records
from magneto.data.problems import HALF_CHARACTERS, INVALID_UTF8, LONG_LINES, MALFORMED, Counts
from magneto.language.config import TRAIN, ClassificationDataConfig
from magneto.language.labelled_texts import read_tables, read_texts
from magneto.translation.text import open_parallel

PACK = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
TEXTS = ["one", "two, “quoted”", "naïve 東京 🙂", "four\u2028still"]


@dataclass(frozen=True)
class Reader:
    """A pipeline and one of its forms: its file's name, how texts become lines and come back."""

    name: str
    write: Callable[[list[str]], list[str]]
    read: Callable[[Path, Counts], list[str]]


def documents(path: Path, counts: Counts) -> list[str]:
    return [line for text in read_documents(str(path), "text", counts) for line in text.split("\n")]


def rows(path: Path, counts: Counts) -> list[str]:
    return read_tables(str(path), TRAIN, ClassificationDataConfig(), counts)["train"].values("text")


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


READERS = [
    Reader("a.txt", list, documents),
    Reader("b.csv", table(",", "text", "label", quote='"'), documents),
    Reader("d.csv", table(",", "text", "label", quote='"'), rows),
    Reader("e.jsonl", objects(lambda text: {"text": text, "label": 1}), rows),
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
    """What is packed is known by its content, whatever it is called."""
    for packing, mark in (("", b""), (".gz", b"\xef\xbb\xbf"), (".xz", b""), (".bz2", b"")):
        path, counts = write(tmp_path, reader, mark + written(reader, TEXTS), packing), Counts()
        path = path.rename(tmp_path / reader.name)
        assert [text for text in reader.read(path, counts) if text] == TEXTS
        assert set(+counts) <= {"documents", "rows"}, "nothing odd is there"


@pytest.mark.parametrize(
    ("how", "packing"),
    [("cut off", ".xz"), ("overwritten", ".gz"), ("not packed", ".gz"), ("another sum", ".gz")],
)
@each(READERS)
def test_damage_is_one_line(reader: Reader, how: str, packing: str, tmp_path: Path) -> None:
    content = written(reader, [f"{i} is {i * i}" for i in range(1500)])
    path = write(tmp_path, reader, content, packing)
    packed = path.read_bytes()
    third = len(packed) // 3
    path.write_bytes({
        "cut off": packed[:third],
        "overwritten": packed[:third] + b"\xff" * third + packed[2 * third :],
        "not packed": content,
        "another sum": packed[:-8] + b"\0" * 8,
    }[how])  # fmt: skip
    damage = rf"{path.name}: damaged (gzip|xz) file \(.+\)$"
    with pytest.raises(ValueError, match=damage) as caught:
        reader.read(path, Counts())
    assert "\n" not in str(caught.value)


# Of three texts the second is odd: how it is written, comes back, is counted.
ODD: dict[str, tuple[str, list[str], str]] = {
    "no UTF-8": ("bad ?x", ["bad \ufffdx"], INVALID_UTF8),
    "too long": ("x" * 5000, [], LONG_LINES),
    "halves of a character": ("half \ud83d 😀", ["half \ufffd 😀"], HALF_CHARACTERS),
}


@pytest.mark.parametrize("what", ODD)
@each(IN_RECORDS)
def test_what_is_odd_is_mended_or_left_out_and_counted(
    reader: Reader, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what.startswith("halves") and reader not in OF_JSON:
        return  # only JSON can spell them
    monkeypatch.setattr(files, "LINE_BYTES", 1000)
    text, back, kind = ODD[what]
    content = written(reader, ["first", text, "last"]).replace(b"?", b"\xff")
    path, counts = write(tmp_path, reader, content), Counts()
    assert [text for text in reader.read(path, counts) if text] == ["first", *back, "last"]
    assert counts[kind] == 1


@each(IN_RECORDS)
def test_carriage_returns_alone_are_no_lines(reader: Reader, tmp_path: Path) -> None:
    path = write(tmp_path, reader, written(reader, TEXTS, "\r"))
    with pytest.raises(ValueError, match=rf"{reader.name}: lines end in a carriage return"):
        reader.read(path, Counts())


@each(READERS)
def test_an_empty_file(reader: Reader, tmp_path: Path) -> None:
    path = write(tmp_path, reader, b"", ".gz")
    (tmp_path / "p.de").write_text("")
    if reader.name in ("a.txt", "b.csv", "p.en"):
        assert reader.read(path, Counts()) == []
    else:
        with pytest.raises(ValueError, match=r"has no (column|records|header)|no records|is empty"):
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


@pytest.mark.parametrize("packing", ["", ".gz"])
@each([BY_NAME["d.csv"], BY_NAME["e.jsonl"], BY_NAME["q.tsv"]])
def test_a_long_line_does_not_fill_the_memory(
    reader: Reader, packing: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(files, "LINE_BYTES", 1 << 16)
    path = write(tmp_path, reader, written(reader, ["first", "x" * (1 << 22)]), packing)
    tracemalloc.start()
    try:
        reader.read(path, Counts())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 21


def test_lines_that_a_quote_swallows_are_counted(tmp_path: Path) -> None:
    """Also where the next cell in quotes seems to close it; a cell of any length is none."""
    reader = BY_NAME["d.csv"]
    path, counts = write(tmp_path, reader, written(reader, ["first", 'x"x', "last"])), Counts()
    assert reader.read(path, counts) == ["first", "last"] and counts[MALFORMED] == 1
    head, *rows = written(reader, ["first", "x" * 200_000, "second", "third"]).splitlines(True)
    for lost, left in (b'"', ["first", "x" * 200_000]), (b'"second', ["first", "x" * 200_000]):
        content = b"".join([head, *rows]).replace(b'second"', b"second")
        content = content if lost == b'"' else content.replace(b'"third"', b"third")
        path, counts = write(tmp_path, reader, content), Counts()
        assert reader.read(path, counts) == left and counts[MALFORMED] == 2
        assert counts.named[MALFORMED][0].startswith(f"{path}, line 4: ")


def test_a_malformed_row_is_no_other_row(tmp_path: Path) -> None:
    """The next row keeps its number, and is not the header."""
    path, counts = tmp_path / "a.csv", Counts()
    path.write_text('text,label\na,b\n"x"y,c\nd\n')
    assert list(stream_records(path, counts)) == [{"text": "a", "label": "b"}]
    assert counts.named[MALFORMED][1] == f"{path}, row 4: 1 cells instead of 2"
    path.write_text('"te"xt,label\na,b\n')
    assert list(stream_records(path, counts)) == []


def test_a_list_that_is_nested_too_deeply_or_has_halves_of_characters(tmp_path: Path) -> None:
    """Also one that is read and then searched for halves; in names they are replaced too."""
    for content, words in (
        (b"[" * 100_000, "nested too deeply"),
        (b'["\\ud800",' + b"[" * 900 + b"]" * 901, "nested too deeply"),
        (b'[{"text": "\xed\xa0\xbd"}]', "a is not JSON: 'utf-8' codec can't decode"),
    ):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(ValueError, match=words):
            read_list(tmp_path / "a", None, Counts())
    (tmp_path / "b").write_text(r'[{"te\ud83dxt": 1}]')
    assert read_list(tmp_path / "b", None, counts := Counts()) == [{"te\ufffdxt": 1}]
    assert counts == {HALF_CHARACTERS: 1}


def test_a_packing_that_python_has_not_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").touch()
    assert source_files(str(tmp_path), (".jsonl",)) == [tmp_path / "a.jsonl.zst"]
    with pytest.raises(
        ValueError, match=r"zst is compressed: unpack it \(zstd -d --rm a\.jsonl\.zst\)$"
    ):
        next(read_lines(tmp_path / "a.jsonl.zst", Counts()))


def test_a_folder_is_no_file_with_an_ending(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").touch()
    (tmp_path / "b.csv").mkdir()
    assert has_ending(tmp_path / "a.csv.gz", (".csv",))
    assert not has_ending(tmp_path / "b.csv", (".csv",))


def test_binary_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content, why in (
        (b"PK\x03\x04 and so on", "a zip archive"), (b"%PDF-1.4 text", "a PDF"),
        (bytes(random.Random(1).choices(range(1, 256), k=9999)), "% of its first characters"),
        (b"a\0b", "NUL bytes"), ("Текст".encode("koi8-r") * 50, "% of its first characters"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(ValueError, match=why), open_text(path):
            pass
    for content in ("Übergang, schön größer als sonst. ".encode("latin-1"), "a\ufffd".encode()):
        path.write_bytes(content * 50)
        with open_text(path) as file:
            assert file.read()
