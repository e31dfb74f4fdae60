"""Texts without labels are read from lines, tables and objects, empty ones too."""

import gzip
from pathlib import Path

import pytest

from magneto.data.counts import MALFORMED, Counts
from magneto.language.classification.glue import GLUE, Columns
from magneto.language.classification.unlabelled import read_unlabelled

OWN = Columns(("text",), (), ("label",))
PAIR = Columns(("one",), ("two",), ("label",))
NUMBERED = Columns(("2",), (), ("1",), (1, -1, 0))

SHAPES = [
    ("a.txt", "one\n\n three \n", OWN, [("one", None), ("", None), (" three ", None)]),
    ("a.list", "one\ttab", OWN, [("one\ttab", None)]),
    ("a.txt", "one\ttwo\nthree", PAIR, [("one", "two"), ("three", "")]),
    ("a.csv", 'n,text\n1,"a, b"\n2,c\n', OWN, [("a, b", None), ("c", None)]),
    ("a.csv", "a b\nc\n", OWN, [("a b", None), ("c", None)]),
    ("a.tsv", "x\ty\n", PAIR, [("x", "y")]),
    ("a.tsv", "two\tone\nx\ty\n", PAIR, [("y", "x")]),
    ("a.csv", "pos,a b\nneg,c\n", NUMBERED, [("a b", None), ("c", None)]),
    ("a.tsv", "gj04\t1\t\tA b.\n", GLUE["cola"].columns, [("A b.", None)]),
    ("a.jsonl", '{"text": "a", "n": 1}\n{"text": ""}\n', OWN, [("a", None), ("", None)]),
]


@pytest.mark.parametrize(("name", "content", "columns", "wanted"), SHAPES)
def test_shapes(name: str, content: str, columns: Columns, wanted: list, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    found = read_unlabelled(tmp_path / name, columns, Counts())
    assert [(row.text, row.pair) for row in found] == wanted
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert [row.text for row in read_unlabelled(packed, columns, Counts())] == [
        w[0] for w in wanted
    ]


def test_what_is_malformed_is_counted(tmp_path: Path) -> None:
    path, counts = tmp_path / "a.csv", Counts()
    path.write_text("n,text\n1\n2,b\n")
    assert [row.text for row in read_unlabelled(path, OWN, counts)] == ["b"]
    assert counts[MALFORMED] == 1
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    assert len(list(read_unlabelled(tmp_path / "b.jsonl", OWN, counts))) == 1
    assert counts[MALFORMED] == 2


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("review,stars\nx,1\n")
    with pytest.raises(ValueError, match=r"no column 'text' .*it has review, stars.*--data\.text"):
        next(read_unlabelled(tmp_path / "a.csv", OWN, Counts()))
