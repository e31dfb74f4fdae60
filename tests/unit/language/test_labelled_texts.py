"""Labelled texts of every source: a file, a folder or GLUE in; rows, labels, counts out."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from magneto.data.problems import EMPTY, INVALID_UTF8, MALFORMED, Counts
from magneto.data.table import Table
from magneto.language import labelled_texts
from magneto.language.config import GLUE, TRAIN, ClassificationDataConfig
from magneto.language.labelled_texts import (
    ROWS,
    UNLABELLED,
    LabelledTexts,
    label_values,
    pairs_of,
    read_tables,
    read_texts,
    read_unlabelled,
)


def write(path: Path, rows: int, labels: str = "xy") -> Path:
    lines = (f"text {i}\t{labels[i % len(labels)]}" for i in range(rows))
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return path


def load(source: Path, **changes) -> LabelledTexts:
    return read_texts(ClassificationDataConfig(source=str(source), **changes))


def read(path: Path, **changes) -> tuple[list[tuple], Counts]:
    """Return text, pair and label of each row of a file, and what was counted."""
    counts, config = Counts(), ClassificationDataConfig(**changes)
    return rows_of(read_tables(str(path), TRAIN, config, counts)["train"]), counts


def rows_of(table: Table) -> list[tuple]:
    labels = table.values("label")
    return [(*pair, label) for pair, label in zip(pairs_of(table), labels, strict=True)]


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


def test_snlis_labels_without_agreement_are_missing(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("text\tgold_label\nA b.\tneutral\nC.\t-\n")
    assert read(tmp_path / "rows.tsv")[0] == [("A b.", None, "neutral")]


def test_files_of_the_sts_benchmark(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        row = f'main-news\theadlines\t2015\t0042\t4.200\tA {split}.\t"B c.\tlink'
        (tmp_path / f"sts-{split}.csv").write_text(f"{row}\n{row}\n")
    config = ClassificationDataConfig(source=str(tmp_path), glue="stsb", target="number")
    texts = read_texts(config)
    assert texts.train[0] == {"text": "A train.", "pair": '"B c.', "label": "4.200"}
    assert texts.validation[""][0]["text"] == "A dev."


@pytest.mark.parametrize("name", GLUE)
def test_glues_own_shapes(name: str, tmp_path: Path) -> None:
    file, text, expected = SHAPES[name]
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert read(tmp_path / file, glue=name)[0][:1] == expected


def test_rows_of_glue_that_are_short_are_counted_and_cells_behind_are_let_be(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("question1\tquestion2\tis_duplicate\na\tb\t0\nc\td\ne\tf\t1\tmore\n")
    rows, counts = read(path, glue="qqp")
    assert rows == [("a", "b", "0"), ("e", "f", "1")]
    assert counts.named[MALFORMED] == [f"{path}, row 3: 2 cells, fewer than 3"]
    path.write_text("question1\tquestion2\tis_duplicate\na\tb\t-1\nc\td\t0\n")
    assert len(read(path, glue="qqp")[0]) == 1  # -1 is no label, unless it is named
    assert len(read(path, glue="qqp", labels=("-1", "0"))[0]) == 2
    path.write_text("gj04\t1\t\tA b.\n\nks08\t0\n")  # without a header
    rows, counts = read(path, glue="cola")
    assert rows == [("A b.", None, "1")]
    assert counts.named[MALFORMED] == [f"{path}, row 3: 2 cells, fewer than 4"]
    with pytest.raises(ValueError, match=r"data\.glue qnli needs a column 'question'.*'gj04'"):
        read(path, glue="qnli")
    path.write_text("index\tsentence\n0\tA b.\n")  # GLUE's test files
    with pytest.raises(ValueError, match=r"data\.glue cola needs a column 'label'"):
        read(path, glue="cola")


def test_what_is_odd_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"text\tlabel\na\t1\nb\n \t1\nc\t\nd\t-1\n\xff\t0\n\n")
    rows, counts = read(path)
    assert [row[0] for row in rows] == ["a", "d", "\ufffd"]
    assert counts == {ROWS: 3, MALFORMED: 1, EMPTY: 1, UNLABELLED: 1, INVALID_UTF8: 1}
    path = tmp_path / "b.jsonl"
    path.write_text('{"text": "a", "other": "b", "label": 0}\n\n{"text": "a", "label": 1}\n')
    counts = read(path, pair_column="other")[1]
    assert counts == {ROWS: 1, MALFORMED: 1}
    assert counts.named[MALFORMED] == [f"{path}, line 3: no text"]
    path = tmp_path / "numbers.tsv"
    path.write_text("text\tlabel\na\t-1\nb\tnan\nc\tmuch\nd\t2.5\ne\tinf\n")
    rows, counts = read(path, target="number")
    assert [row[2] for row in rows] == ["-1", "2.5"] and counts[UNLABELLED] == 3


def test_a_folder_has_glues_names(tmp_path: Path) -> None:
    for name, count in (("train", 6), ("dev_matched", 4), ("dev_mismatched", 2), ("test", 1)):
        write(tmp_path / f"{name}.tsv", count)
    whole = load(tmp_path)
    assert [len(whole.train), *map(len, whole.validation.values())] == [6, 4, 2]
    assert list(whole.validation) == ["", "mismatched"]
    assert whole.counts[ROWS] == 12  # the test split is not read
    only = load(tmp_path, validation_source=str(tmp_path / "dev_matched.tsv"))
    assert list(only.validation) == [""] and len(only.train) == only.counts[ROWS] - 4 == 6
    other = tmp_path / "other"
    other.mkdir()
    write(other / "multinli_1.0_train.tsv", 90)
    held = load(other, validation_source=str(tmp_path))
    assert [*map(len, held.validation.values())] == [4, 2] and len(held.train) == 90
    assert len(load(other).train) + len(load(other).validation[""]) == 90
    alone = tmp_path / "dev_mismatched.tsv"  # as `magneto evaluate --data` has it
    measured = load(alone, validation_source=str(alone), labels=("y", "x"))
    assert len(measured.validation[""]) == measured.counts[ROWS] == 2
    assert measured.labels == ("y", "x")
    assert label_values(measured.validation[""], measured.labels).tolist() == [1, 0]


def test_folders_of_texts_name_their_classes(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / "train" / ["pos", "neg"][number % 2] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {number}\nof two lines\n", encoding="utf-8")
    (tmp_path / "train" / "unsup").mkdir()
    (tmp_path / "train" / "unsup" / "1.txt").write_text("no label", encoding="utf-8")
    (tmp_path / "train" / "list.txt").write_text("no text", encoding="utf-8")
    found = load(tmp_path)
    rows = {*rows_of(found.train), *rows_of(found.validation[""])}
    expected = {(f"text {n}\nof two lines\n", None, ["pos", "neg"][n % 2]) for n in range(20)}
    assert rows == expected and found.labels == ("neg", "pos")
    assert found.counts[UNLABELLED] == 2
    within = load(tmp_path / "train")
    assert len(within.train) + len(within.validation[""]) == 20


def test_mistakes_are_answered(tmp_path: Path) -> None:
    """Rows to be measured on are called by their source."""
    write(tmp_path / "train.tsv", 4)
    write(tmp_path / "dev.tsv", 4, "xz")
    for name in ("dev", "rows"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / f"{name}.tsv", 3)
    alone = str(write(tmp_path / "other.tsv", 1, "3"))
    table = tmp_path / "split.csv"
    table.write_text("text,label,split\na,x,train\nb,z,validation\n")
    several = tmp_path / "several.jsonl"
    several.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": ["x", "y"]}\n')
    labels = {"validation_source": alone, "labels": ("x", "y")}
    number = {"validation_source": alone, "target": "number"}
    for source, changes, words in (
        (tmp_path, {}, r"unknown labels in the validation rows \('z'\)"),
        (write(tmp_path / "one.tsv", 50, "x"), {}, "has only one class, x: "),
        (write(tmp_path / "none.tsv", 0), {"validation_source": str(tmp_path)},
         "has no training rows: 4 rows"),
        (several, {}, r"'label' has lists of classes, such as \['x', 'y'\]"),
        (tmp_path / "dev", {}, "has no training split named train, only validation"),
        (tmp_path / "rows", {}, "has no file named train or training or .*, only rows"),
        (alone, labels, r"other\.tsv: unknown labels in the rows \('3'\)"),
        (alone, number, r"other\.tsv has 1 row \(a correlation needs"),
        (table, labels | {"validation_source": str(table)}, r"unknown labels in the rows \('z'\)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            load(Path(source), **changes)


def test_the_hub_is_read_through_datasets(tmp_path: Path) -> None:
    """A folder that the library itself splits, as it does on the hub."""
    datasets = pytest.importorskip("datasets")
    counts = {"train": 5, "validation_matched": 3, "validation_mismatched": 2, "test": 1}
    for split, count in counts.items():
        rows = [{"premise": f"s {i}", "hypothesis": "a", "label": i % 2} for i in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = "".join(f"  - {{split: {split}, path: {split}.jsonl}}\n" for split in counts)
    (tmp_path / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mnli\n  data_files:\n{files}"
        "dataset_info:\n- config_name: mnli\n  features:\n  - {name: premise, dtype: string}\n"
        "  - {name: hypothesis, dtype: string}\n"
        "  - name: label\n    dtype:\n      class_label:\n        names:\n"
        "          '0': unacceptable\n          '1': acceptable\n---\n"
    )
    datasets.disable_progress_bars()
    whole = load(Path(f"hf:{tmp_path}:mnli"), glue="mnli")
    assert whole.labels == ("unacceptable", "acceptable")  # in the set's order, not sorted
    assert rows_of(whole.train)[:2] == [("s 0", "a", "unacceptable"), ("s 1", "a", "acceptable")]
    assert [len(whole.train), *map(len, whole.validation.values())] == [5, 3, 2]
    one = load(
        Path(f"hf:{tmp_path}:mnli:train"), glue="mnli", validation_source=f"hf:{tmp_path}:mnli"
    )
    assert [len(one.train), *map(len, one.validation.values())] == [5, 3, 2]


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_other_data_without_a_validation_split_are_the_test_split(
    tmp_path: Path, prefix: str
) -> None:
    if prefix:
        pytest.importorskip("datasets").disable_progress_bars()
    for split, count in (("train", 5), ("test", 3), ("validation", 2)):
        rows = "".join(f"text {i},{'xy'[i % 2]}\n" for i in range(count))
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}")
    other = {"validation_source": f"{prefix}{tmp_path}"}
    for held in (2, 3):
        found = load(Path(other["validation_source"]), **other)
        assert len(found.validation[""]) == held == found.counts[ROWS]
        (tmp_path / "validation.csv").unlink(missing_ok=True)


def sentence(number: int) -> str:
    words = [f"word{number % 7}", "is", "after", f"a{number}", "and", "before", f"b{number}"]
    return " ".join(words)


def test_word_order_is_balanced_and_tells_nothing_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [". ".join(sentence(10 * i + j).capitalize() for j in range(10)) for i in range(60)]
    others = [documents[0], "Too short. " * 3, "long " * 21, "one two " * 4]
    monkeypatch.setattr(labelled_texts, "docstrings", lambda: [*documents, *others])
    whole, again = (read_texts(ClassificationDataConfig()) for _ in range(2))
    rows = [*rows_of(whole.train), *rows_of(whole.validation[""])]
    written = {sentence(number) for number in range(600)}
    assert len(rows) == 600 and whole.labels == ("as-written", "shuffled")
    assert whole.counts[ROWS] == 600
    assert all((text in written) == (label == "as-written") for text, _, label in rows)
    words = [{" ".join(sorted(text.split())) for text in texts}
             for texts in (written, [text for text, _, _ in rows])]  # fmt: skip
    assert words[0] == words[1] and again.train.digest == whole.train.digest
    for part in (whole.train, whole.validation[""]):  # what is held out tells nothing of the label
        assert 0.42 < np.mean([label == "as-written" for label in part.values("label")]) < 0.58


def test_a_mark_may_end_the_label(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("label\ttext\n:x\tone\nLOC :y\ttwo\n")
    rows, counts = read(path, label_delimiter=":")
    assert rows == [("two", None, "LOC")] and counts[UNLABELLED] == 1
    labels = ("LOC:x", "LOC:y", "DESC:z")
    rows = "".join(f"{labels[i % 3]}\tWhy {i} ?\n" for i in range(99))
    path.write_text("label\ttext\n" + rows)
    assert load(path, label_delimiter=":").labels == ("DESC", "LOC")
    assert load(path).labels == ("DESC:z", "LOC:x", "LOC:y")


PAIR = {"text_column": "one", "pair_column": "two"}
UNLABELLED_SHAPES = [
    ("a.csv", "n,text\n1\n2,odd\n", {}, [("odd", None)]),
    ("a.jsonl", '{"text": "odd"}\n{"text": 3}\n', {}, [("odd", None)]),
    ("a.txt", "one\n\n three \n", {}, [("one", None), ("", None), (" three ", None)]),
    ("a.list", "one\ttab", {}, [("one\ttab", None)]),
    ("a.txt", "one\ttwo\nthree", PAIR, [("one", "two"), ("three", "")]),
    ("a.txt", "one\ttwo\n", {"glue": "mrpc"}, [("one", "two")]),
    ("a.txt", "one\ttwo\n", {"glue": "cola"}, [("one\ttwo", None)]),
    ("a.csv", "sentence,text\nx,y\n", {"pair_column": "text"}, [("x", "y")]),
    ("a.csv", 'n,text\n1,"a, b"\n2,c\n', {}, [("a, b", None), ("c", None)]),
    ("a.tsv", "two\tone\nx\ty\n\tz\n", PAIR, [("y", "x"), ("z", "")]),
    ("a.tsv", "gj04\t1\t\tA b.\n", {"glue": "cola"}, [("A b.", None)]),
    ("a.tsv", "index\tsentence\n0\tA b.\n", {"glue": "cola"}, [("A b.", None)]),
    ("a.jsonl", '{"text": "a", "n": 1}\n{"text": ""}\n', {}, [("a", None), ("", None)]),
]


@pytest.mark.parametrize(("name", "content", "columns", "wanted"), UNLABELLED_SHAPES)
def test_texts_without_labels(
    name: str, content: str, columns: dict, wanted: list, tmp_path: Path
) -> None:
    """One that is malformed is counted."""
    for path, packed in ((tmp_path / name, bytes), (tmp_path / f"{name}.gz", gzip.compress)):
        path.write_bytes(packed(content.encode()))
        config, counts = ClassificationDataConfig(**columns), Counts()
        assert [*read_unlabelled(path, config, counts)] == wanted
        assert counts[MALFORMED] == ("odd" in content)
