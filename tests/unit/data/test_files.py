"""Files are found, unpacked and lose their byte-order mark; what can't be read is named."""

import random
from pathlib import Path

import pytest

from magneto.data.documents import source_files
from magneto.data.files import (
    has_ending,
    open_text,
    read_lines,
)
from magneto.data.problems import Counts


def test_a_packing_that_python_has_not_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").touch()
    assert source_files(str(tmp_path), (".jsonl",)) == [tmp_path / "a.jsonl.zst"]
    with pytest.raises(
        ValueError, match=r"zst is compressed: unpack it \(zstd -d --rm a\.jsonl\.zst\)$"
    ):
        next(read_lines(tmp_path / "a.jsonl.zst", Counts()))


def test_files_of_a_folder_by_their_endings(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt.xz", "deep/c.txt.gz", "d.md", "e.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.txt").mkdir()
    found = [str(path.relative_to(tmp_path)) for path in source_files(str(tmp_path), (".txt",))]
    assert found == ["a.txt.xz", "b.txt", "deep/c.txt.gz"]
    assert not has_ending(tmp_path / "folder.txt", (".txt",))
    assert source_files(str(tmp_path / "d.md"), (".txt",)) == [tmp_path / "d.md"]
    with pytest.raises(ValueError, match=r"none ends in \.csv, \.tsv"):
        source_files(str(tmp_path), (".csv", ".tsv"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PK\x03\x04 and so on", "a zip archive"),
        (b"%PDF-1.4 text", "a PDF"),
        (bytes(random.Random(1).choices(range(1, 256), k=9999)), "% of its first characters"),
        (b"a\0b", "NUL bytes"),
        ("Текст".encode("koi8-r") * 50, "% of its first characters"),
    ],
)
def test_binary_files_are_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=why), open_text(path):
        pass
    path.write_bytes("Übergang, schön größer als sonst. ".encode("latin-1") * 50)
    with open_text(path) as file:
        assert file.read()
