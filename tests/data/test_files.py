"""Files are unpacked and lose their byte-order mark; a damaged one is named, whoever reads it."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from magneto.data.files import open_bytes
from magneto.data.sources import Counts, read_documents
from magneto.language.classification.files import Columns, RowCounts, read_file
from magneto.language.in_context.files import read_records
from magneto.translation.config import PairCounts
from magneto.translation.sources import open_parallel

MARK = b"\xef\xbb\xbf"
PACKED = gzip.compress(b"".join(b"%d is %d\n" % (i, i * i) for i in range(50_000)))
DAMAGED = {
    "cut off": PACKED[: len(PACKED) // 2],
    "overwritten": PACKED[:5000] + b"\xff" * 5000 + PACKED[10_000:],
    "no gzip": b"1 is 1\n",
    "wrong sum": PACKED[:-8] + b"\0" * 8,
}


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_bytes_without_the_mark_at_their_start(tmp_path: Path, name: str) -> None:
    pack = gzip.compress if name.endswith(".gz") else bytes
    for text in (b"", b"x", b"one\ntwo\xef\xbb\xbf\n", b"\xef\xbb"):
        for mark in (b"", MARK):
            (tmp_path / name).write_bytes(pack(mark + text))
            with open_bytes(tmp_path / name) as file:
                assert file.read() == text


def read_parallel(path: Path) -> list:
    text = open_parallel(str(path.with_name("a")), None)
    return list(text.read("de", "en", "train", PairCounts()))


def read_labelled(path: Path) -> list:
    columns = Columns(("text",), (), ("label",), (0, 0, 0))
    return list(read_file(path, columns, False, RowCounts()))


READERS: dict[str, Callable[[Path], list]] = {
    "a.en.gz": read_parallel,
    "a.txt.gz": lambda path: list(read_documents(str(path), "text", Counts())),
    "b.tsv.gz": read_labelled,
    "c.csv.gz": lambda path: list(read_records(path)),
}


@pytest.mark.parametrize("how", DAMAGED)
@pytest.mark.parametrize("name", READERS)
def test_damage_is_a_one_line_error(tmp_path: Path, name: str, how: str) -> None:
    (tmp_path / "a.de").write_text("x\n" * 50_000)
    (tmp_path / name).write_bytes(DAMAGED[how])
    with pytest.raises(ValueError, match=rf"{name}: damaged gzip file \(.+\)$") as caught:
        READERS[name](tmp_path / name)
    assert "\n" not in str(caught.value)


def test_damage_in_tmx(tmp_path: Path) -> None:
    unit = '<tu><tuv xml:lang="en"><seg>%d</seg></tuv><tuv xml:lang="de"><seg>%d</seg></tuv></tu>'
    body = "".join(unit % (i, i * i) for i in range(9000))
    packed = gzip.compress(f"<tmx><body>{body}</body></tmx>".encode())
    (tmp_path / "a.tmx.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"a\.tmx\.gz: damaged gzip file"):
        list(
            open_parallel(str(tmp_path / "a.tmx.gz"), None).read("de", "en", "train", PairCounts())
        )
