"""From a configuration to inputs: splits, labels, pairs, truncation, the hub's shape."""

import json
from pathlib import Path

import numpy as np
import pytest

from magneto.config import ConfigError, build
from magneto.data import builtin
from magneto.data.tokenizer import ByteTokenizer
from magneto.language.classification.config import ClassificationDataConfig
from magneto.language.classification.data import assemble, encode, make_tokenizer, read_texts
from magneto.language.classification.files import ROWS, UNLABELLED, Row
from magneto.language.classification.sources import find_splits
from magneto.progress import SILENT


def write(path: Path, rows: int, labels: str = "xy") -> Path:
    lines = (f"text {i}\t{labels[i % len(labels)]}" for i in range(rows))
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return path


def config(source: Path, **changes) -> ClassificationDataConfig:
    return ClassificationDataConfig(source=str(source), **changes)


def test_a_file_is_split_by_the_hash_of_its_texts(tmp_path: Path) -> None:
    whole = read_texts(config(write(tmp_path / "rows.tsv", 400), validation_fraction=0.25))
    held = {row.text for row in whole.validation[""]}
    assert 60 < len(held) < 140 and held.isdisjoint(row.text for row in whole.train)
    assert whole.labels == ("x", "y") and whole.counts[ROWS] == 400
    more = read_texts(config(write(tmp_path / "rows.tsv", 500), validation_fraction=0.25))
    assert held <= {row.text for row in more.validation[""]}


def test_a_folder_has_glues_names(tmp_path: Path) -> None:
    for name, count in (("train", 6), ("dev_matched", 4), ("dev_mismatched", 2)):
        write(tmp_path / f"{name}.tsv", count)
    whole = read_texts(config(tmp_path))
    assert [len(whole.train), *map(len, whole.validation.values())] == [6, 4, 2]
    assert list(whole.validation) == ["", "mismatched"]
    only = read_texts(config(tmp_path, validation_source=str(tmp_path / "dev_matched.tsv")))
    assert list(only.validation) == [""] and len(only.train) == 6
    other = tmp_path / "other"
    other.mkdir()
    write(other / "multinli_1.0_train.txt", 3)
    assert find_splits(str(other)) == (str(other / "multinli_1.0_train.txt"), {})
    alone = str(tmp_path / "dev_mismatched.tsv")  # as `magneto evaluate --data` has it
    measured = read_texts(config(Path(alone), validation_source=alone, labels=("y", "x")))
    assert len(measured.validation[""]) == measured.counts[ROWS] == 2
    assert measured.labels == ("y", "x")


@pytest.mark.parametrize(
    ("names", "match"),
    [((), "no file ends in"), (("dev.tsv",), "nothing named train \\(it has dev\\)")],
)
def test_folders_without_a_training_file(names: tuple, match: str, tmp_path: Path) -> None:
    for name in names:
        write(tmp_path / name, 3)
    with pytest.raises(ValueError, match=match):
        read_texts(config(tmp_path))


def test_minus_one_is_a_label_unless_glue_says_otherwise(tmp_path: Path) -> None:
    lines = (f"text {i}\t{(-1, 1)[i % 2]}" for i in range(100))
    path = tmp_path / "signs.tsv"
    path.write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    signs = read_texts(config(path, text_column="sentence"))
    assert signs.labels == ("-1", "1") and signs.counts[UNLABELLED] == 0
    with pytest.raises(ValueError, match=r"one label only: 1; 50 rows \(50 rows without a label"):
        read_texts(config(path, glue="sst2"))
    named = read_texts(config(path, glue="sst2", labels=("-1", "1")))
    assert named.counts[UNLABELLED] == 0


def test_rows_to_be_measured_on_are_called_by_their_source(tmp_path: Path) -> None:
    path = write(tmp_path / "other.tsv", 3, "z")
    with pytest.raises(ValueError, match=r"other\.tsv: the rows have labels \('z'\) that are not"):
        read_texts(config(path, validation_source=str(path), labels=("x", "y")))
    path.write_text("text\tlabel\n")
    with pytest.raises(ValueError, match=r"other\.tsv has no rows: 0 rows"):
        read_texts(config(path, validation_source=str(path), labels=("x", "y")))


def test_one_row_has_no_correlation(tmp_path: Path) -> None:
    path = write(tmp_path / "one.tsv", 1, "3")
    with pytest.raises(ValueError, match=r"one\.tsv has 1 rows \(a correlation is"):
        read_texts(config(path, validation_source=str(path), target="number"))


def test_mistakes_are_answered(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", 4)
    write(tmp_path / "dev.tsv", 4, "xz")
    with pytest.raises(ValueError, match=r"validation rows have labels \('z'\)"):
        read_texts(config(tmp_path))
    with pytest.raises(ValueError, match="one label only: x"):
        read_texts(config(write(tmp_path / "one.tsv", 50, "x")))
    with pytest.raises(ValueError, match="has no training rows: 4 rows"):
        read_texts(config(write(tmp_path / "none.tsv", 0), validation_source=str(tmp_path)))
    with pytest.raises(FileNotFoundError, match=r"did you mean .*dev\.tsv"):
        read_texts(config(tmp_path / "dew.tsv"))
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(ValueError, match="is no labelled text"):
        read_texts(config(tmp_path / "a.xlsx"))
    with pytest.raises(ConfigError) as caught:
        build(
            ClassificationDataConfig,
            {"glue": "colla", "max_length": 3, "labels": ["a", "a"], "vocab_size": 5},
            "data",
        )
    text = "\n".join(caught.value.lines)
    for part in ("did you mean cola", "length must be", "different ones", "vocab_size must be"):
        assert part in text
    with pytest.raises(ValueError, match="not for a number"):
        ClassificationDataConfig(glue="stsb", metric="f1")
    with pytest.raises(ValueError, match="builtin:word-order"):
        ClassificationDataConfig(source="builtin:word")


def test_glue_sets_columns_metric_and_kind() -> None:
    found = {
        name: (made.number, made.primary_metric)
        for name in ("cola", "stsb", "mnli", "none")
        for made in [ClassificationDataConfig(glue=name)]
    }
    assert found == {
        "cola": (False, "matthews"), "stsb": (True, "pearson"), "mnli": (False, "accuracy"),
        "none": (False, "accuracy"),
    }  # fmt: skip
    assert ClassificationDataConfig(target="number", metric="spearman").primary_metric == "spearman"


def test_inputs_of_single_texts_and_pairs() -> None:
    words = ByteTokenizer()
    s, e = words.begin, words.end
    one = ClassificationDataConfig(max_length=8)
    assert assemble([1, 2], None, words, one) == ([s, 1, 2, e], 4, False)
    assert assemble([1, 2], [3], words, one) == ([s, 1, 2, e, e, 3, e], 5, False)
    single = ClassificationDataConfig(max_length=8, separator="single")
    assert assemble([1, 2], [3], words, single) == ([s, 1, 2, e, 3, e], 4, False)
    assert assemble([1] * 9, None, words, one) == ([s, *[1] * 6, e], 8, True)
    assert assemble([1] * 9, [3], words, one) == ([s, 1, 1, 1, e, e, 3, e], 6, True)
    assert assemble([1], [3] * 9, words, one) == ([s, 1, e, e, 3, 3, 3, e], 4, True)
    assert assemble([1] * 9, [3] * 9, words, one) == ([s, 1, 1, e, e, 3, 3, e], 5, True)


def test_encoding_keeps_order_and_labels() -> None:
    rows = [Row("ab", "c", "no"), Row("a" * 30, "c", "yes")]
    made = encode(
        rows,
        ("no", "yes"),
        ByteTokenizer(),
        ClassificationDataConfig(max_length=20),
        SILENT,
    )
    assert made.labels.tolist() == [0, 1] and made.truncated == 1
    assert made.lengths.tolist() == [7, 20] and made.second.tolist() == [5, 18]
    numbers = ClassificationDataConfig(target="number")
    made = encode([Row("a", None, "2.5")], (), ByteTokenizer(), numbers, SILENT)
    assert made.labels.dtype == np.float32 and made.labels.tolist() == [2.5]


def test_a_tokenizer_is_trained_once_on_both_texts() -> None:
    pytest.importorskip("tokenizers")
    rows = [Row("hello world " * 5, "goodbye moon " * 5, "x")] * 20
    made = make_tokenizer(ClassificationDataConfig(vocab_size=300), rows)
    assert made.path == make_tokenizer(ClassificationDataConfig(vocab_size=300), rows).path
    assert all(len(tokens) < 20 for tokens in made.encode([rows[0].text, rows[0].pair or ""]))
    assert len({made.begin, made.end, made.pad, made.mask}) == 4


def test_the_hub_is_read_through_datasets(tmp_path: Path) -> None:
    """A folder that the library itself splits, as it does on the hub."""
    datasets = pytest.importorskip("datasets")
    for split, count in (("train", 5), ("validation", 3)):
        rows = [{"sentence": f"s {i}", "label": i % 2} for i in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: cola\n  data_files:\n"
        "  - {split: train, path: train.jsonl}\n  - {split: validation, path: validation.jsonl}\n"
        "dataset_info:\n- config_name: cola\n  features:\n  - {name: sentence, dtype: string}\n"
        "  - name: label\n    dtype:\n      class_label:\n        names:\n"
        "          '0': unacceptable\n          '1': acceptable\n---\n"
    )
    datasets.disable_progress_bars()
    whole = read_texts(ClassificationDataConfig(source=f"hf:{tmp_path}:cola", glue="cola"))
    assert whole.labels == ("unacceptable", "acceptable")  # in the set's order, not sorted
    assert [row.label for row in whole.train[:2]] == ["unacceptable", "acceptable"]
    assert len(whole.train) == 5 and len(whole.validation[""]) == 3


def sentence(number: int) -> str:
    words = [f"word{number % 7}", "is", "after", f"a{number}", "and", "before", f"b{number}"]
    return " ".join(words)


def test_word_order_is_balanced_and_tells_nothing_by_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = [". ".join(sentence(10 * i + j).capitalize() for j in range(10)) for i in range(60)]
    monkeypatch.setattr(builtin, "docstrings", lambda: [*documents, "Too short. " * 3])
    whole = read_texts(ClassificationDataConfig())
    rows = [*whole.train, *whole.validation[""]]
    written = {sentence(number) for number in range(600)}
    assert len(rows) == 600 and whole.labels == ("as-written", "shuffled")
    assert all((row.text in written) == (row.label == "as-written") for row in rows)
    assert {" ".join(sorted(row.text.split())) for row in rows} == {
        " ".join(sorted(text.split())) for text in written
    }
    share = np.mean([row.label == "as-written" for row in rows])
    assert 0.43 < share < 0.57
    assert read_texts(ClassificationDataConfig()).train == whole.train  # the same each time


def test_a_mark_may_end_the_label(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    labels = ("LOC:x", "LOC:y", "DESC:z")
    rows = "".join(f"{labels[i % 3]}\tWhy {i} ?\n" for i in range(99))
    path.write_text("label\ttext\n" + rows)
    assert read_texts(config(path, label_until=":")).labels == ("DESC", "LOC")
    assert read_texts(config(path)).labels == ("DESC:z", "LOC:x", "LOC:y")


def test_columns_by_number_count_from_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"{i % 2},{i},text {i}\n" for i in range(60)))
    found = read_texts(config(tmp_path / "a.csv", text_column="3", label_column="1"))
    assert found.labels == ("0", "1") and found.train[0].text == "text 0"
    with pytest.raises(ConfigError, match="columns count from 1"):
        config(tmp_path / "a.csv", text_column="0")
