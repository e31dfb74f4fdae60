"""Labelled texts in every shape are read alike; what is odd is counted."""

import gzip
import json
from pathlib import Path

import pytest

from magneto.data.counts import EMPTY, HALF_CHARACTERS, INVALID_UTF8, MALFORMED, Counts
from magneto.language.classification.files import (
    ROWS,
    UNLABELLED,
    Row,
    read_file,
)
from magneto.language.classification.glue import GLUE, Columns

OWN = Columns(("text",), (), ("label",))
SHARED = Path(__file__).parents[4] / "shared" / "data" / "classification"


def read(path: Path, columns: Columns = OWN, number: bool = False) -> tuple[list[Row], Counts]:
    counts = Counts()
    return list(read_file(path, columns, number, counts)), counts


SHAPES = {
    "cola": ("dev.tsv", "gj04\t1\t\tA b.\nks08\t0\t*\tB a.\n", [("A b.", None, "1")]),
    "sst2": ("train.tsv", "sentence\tlabel\ngood \t1\n", [("good ", None, "1")]),
    "mrpc": (
        "msr_paraphrase_train.txt",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\t"A\tB "b\n',
        [('"A', 'B "b', "0")],
    ),
    "qqp": (
        "train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tWhy not?\t0\n",
        [("Why?", "Why not?", "0")],
    ),
    "stsb": (
        "dev.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tn\tf\t2012\t1\tx\ty\tA b.\tA c.\t3.25\n",
        [("A b.", "A c.", "3.25")],
    ),
    "mnli": (
        "dev_matched.tsv",
        "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\t1\tg\tA b.\tA.\tneutral\tentailment\n1\t2\tg\tC.\tD.\tneutral\t-\n",
        [("A b.", "A.", "entailment")],
    ),
    "qnli": (
        "train.tsv",
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe did.\tnot_entailment\n",
        [("Who?", "He did.", "not_entailment")],
    ),
    "rte": (
        "train.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tA b.\tB.\tentailment\n",
        [("A b.", "B.", "entailment")],
    ),
}


@pytest.mark.parametrize("name", GLUE)
def test_glues_own_shapes(name: str, tmp_path: Path) -> None:
    file, text, expected = SHAPES[name]
    (tmp_path / file).write_text(text, encoding="utf-8")
    rows, _ = read(tmp_path / file, GLUE[name].columns, GLUE[name].number)
    assert [(r.text, r.pair, r.label) for r in rows[:1]] == expected
    with gzip.open(tmp_path / f"{file}.gz", "wt", encoding="utf-8") as packed:
        packed.write(text)
    assert read(tmp_path / f"{file}.gz", GLUE[name].columns, GLUE[name].number)[0] == rows


def test_jsonl_and_csv_say_the_same(tmp_path: Path) -> None:
    rows = [("one, two", "x"), ('three "four"\nfive', "y")]
    lines = (json.dumps({"id": 1, "text": text, "label": label}) for text, label in rows)
    (tmp_path / "a.jsonl").write_text("\n\n".join(lines))
    (tmp_path / "a.csv").write_text(
        'id,label,text\n1,x,"one, two"\n2,y,"three ""four""\nfive"\n', encoding="utf-8"
    )
    expected = [Row(text, None, label) for text, label in rows]
    assert read(tmp_path / "a.jsonl")[0] == read(tmp_path / "a.csv")[0] == expected


def test_what_is_odd_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"text\tlabel\na\t1\nb\n \t1\nc\t\nd\t-1\n\xff\t0\n\n")
    rows, counts = read(path)
    assert [row.text for row in rows] == ["a", "\ufffd"]
    assert counts == {ROWS: 2, MALFORMED: 1, EMPTY: 1, UNLABELLED: 2, INVALID_UTF8: 1}
    words = counts.describe(ROWS)
    assert words.startswith("2 rows (2 rows without a label") and "1 lines with invalid" in words
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 0}\n[]\n{"text": 3, "label": 1}\n{')
    assert read(tmp_path / "a.jsonl")[1] == {ROWS: 1, MALFORMED: 3}
    pairs = Columns(("text",), ("other",), ("label",))
    (tmp_path / "b.jsonl").write_text(
        '{"text": "a", "other": "b", "label": 0}\n{"text": "a", "label": 1}\n'
    )
    assert read(tmp_path / "b.jsonl", pairs)[1] == {ROWS: 1, MALFORMED: 1}


def test_numbers_must_be_finite(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\na\t-1\nb\tnan\nc\tmuch\nd\t2.5\n")
    rows, counts = read(tmp_path / "a.tsv", number=True)
    assert [row.label for row in rows] == ["-1", "2.5"] and counts[UNLABELLED] == 2


def test_a_line_nested_too_deeply_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[" * 200_000 + '\n{"text": "a", "label": 1}\n')
    rows, counts = read(tmp_path / "a.jsonl")
    assert len(rows) == 1 and counts[MALFORMED] == 1


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_a_missing_column_is_named(name: str, tmp_path: Path) -> None:
    text = '{"texts": "a", "label": 1}' if name == "a.jsonl" else "texts,label\na,1\n"
    (tmp_path / name).write_text(text.replace(",", "\t") if name == "a.tsv" else text)
    with pytest.raises(ValueError, match=r"no column 'text' for data.text_column; did you mean 't"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "file", "count", "odd"),
    [
        ("cola", "in_domain_train.tsv.gz", 8551, 0), ("sst2", "dev.tsv.gz", 872, 0),
        ("mrpc", "val.tsv.gz", 500, 0), ("rte", "test.tsv.gz", 800, 0),
        ("sts_semeval", "train.tsv.gz", 3000, 0), ("sts_semeval", "test.tsv.gz", 6750, 5500),
    ],
)  # fmt: skip
def test_real_sets(name: str, file: str, count: int, odd: int) -> None:
    path = SHARED / name / file
    if not path.is_file():
        pytest.skip("the shared data is not there")
    task = GLUE["stsb" if name == "sts_semeval" else name]
    rows, counts = read(path, task.columns, task.number)
    assert (len(rows), counts[UNLABELLED]) == (count, odd)
    assert counts[MALFORMED] == counts[EMPTY] == counts[INVALID_UTF8] == 0
    assert all((row.pair is not None) == bool(task.columns.pair) for row in rows)


def test_half_a_character_is_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        r'{"text": "a \ud83d", "label": "x"}' + "\n" + r'{"text": "\ud83d\ude00", "label": "y"}'
    )
    rows, counts = read(path)
    assert [row.text for row in rows] == ["a \ufffd", "😀"]
    assert counts == {ROWS: 2, HALF_CHARACTERS: 1}


def test_columns_by_number(tmp_path: Path) -> None:
    numbered = Columns(("2",), (), ("1",), (1, -1, 0))
    (tmp_path / "a.csv").write_text("pos,a b\nneg,c\nneg\n")
    rows, counts = read(tmp_path / "a.csv", numbered)
    assert rows == [Row("a b", None, "pos"), Row("c", None, "neg")] and counts[MALFORMED] == 1
    (tmp_path / "b.csv").write_text("1,2\npos,a\n")  # which are names here
    assert read(tmp_path / "b.csv", numbered)[0] == [Row("a", None, "pos")]
    (tmp_path / "c.csv").write_text("pos,a b\n")
    with pytest.raises(ValueError, match=r"--data\.text_column 2 --data\.label_column 1"):
        read(tmp_path / "c.csv")
