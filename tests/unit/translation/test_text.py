"""Parallel text of every form is read, aligned, and told apart by split and language."""

import gzip
import json
from pathlib import Path

import pytest

from magneto.data.problems import HALF_CHARACTERS, INVALID_UTF8, MALFORMED, Counts
from magneto.translation.config import Texts
from magneto.translation.text import LACKING, line_pairs, open_parallel

MARK = "\ufeff"
TWO = [{"en": "one", "de": "eins"}, {"en": "three", "de": "drei"}]


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        pack = gzip.compress if name.endswith(".gz") else bytes
        (folder / name).write_bytes(pack(text.encode()))
    return folder


def objects(records: list[dict]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def read(path: Path, first: str, second: str, split: str = "train") -> list[Texts]:
    return list(open_parallel(str(path), None).read(first, second, split, Counts()))


def counted(path: Path, first: str, second: str) -> tuple[list[Texts], Counts]:
    counts = Counts()
    return list(open_parallel(str(path), None).read(first, second, "train", counts)), counts


def test_line_pairs_by_stem_folder_and_split(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {
        "train.en": f"{MARK}one\ntwo\u2028still two\r\nthree", "train.de": "eins\nzwei\ndrei\n",
        "train.fr.gz": f"{MARK}un\ndeux\n{MARK}trois\n", "val.en": "four\n", "val.de": "vier\n",
        "opus.en-de-test.en": "five\n", "opus.en-de-test.de": "fünf\n", "SOURCE.md": "# about\n",
    })  # fmt: skip
    assert read(folder, "de", "en") == [
        ("eins", "one"), ("zwei", "two\u2028still two"), ("drei", "three"),
    ]  # fmt: skip
    assert read(folder, "en", "fr")[2] == ("three", f"{MARK}trois")
    assert read(folder, "en", "de", "validation") == [("four", "vier")]
    assert read(folder / "train", "fr", "de")[0] == ("un", "eins")
    text = open_parallel(str(folder), None)
    assert text.languages == ["de", "en", "fr"]
    assert text.pairs("validation") == {("de", "en")} == text.pairs("test")


def test_folders_tell_the_split(tmp_path: Path) -> None:
    """What lies in dev/ or test/ is not trained on; a folder above the source says nothing."""
    for name in ("Train", "dev", "test"):
        write(tmp_path / "dev", {})
        write(tmp_path / "dev" / name, {"a.en": f"{name}\n", "a.de": f"{name}\n"})
        (tmp_path / "dev" / "tables" / name).mkdir(parents=True)
        write(tmp_path / "dev" / "tables" / name, {"a.tsv": f"en\tde\n{name}\t{name}\n"})
    for source in (tmp_path / "dev", tmp_path / "dev" / "tables"):
        for split, name in (("train", "Train"), ("validation", "dev"), ("test", "test")):
            assert read(source, "en", "de", split) == [(name, name)]
    assert read(tmp_path / "dev" / "test", "en", "de") == [("test", "test")]


def test_wmt_names_are_one_stem(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {
        "newstest-src.eng.txt": "one\n", "newstest-ref.deu.txt": "eins\n",
        "newstest-ref.zho-CN.txt.gz": "一\n",
    })  # fmt: skip
    assert read(folder, "eng", "zho-CN") == [("one", "一")]


RECORDS = {
    "headed.tsv.gz": "en\tde\tscore\none\teins\t1\nodd\nthree\tdrei\t1\n",
    "headed.csv": 'en,de\n"one",eins\nodd\nthree,drei\n',
    "flat.jsonl": objects(TWO) + "[}",
    "list.json": json.dumps([*TWO, 3]),
    "nested.jsonl": objects([{"id": "x", "translation": record} for record in TWO])
    + objects([{"translation": {"en": "two"}}]),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "text", {name: RECORDS[name]}) / name
    found, counts = counted(path, "de", "en")
    assert found == [("eins", "one"), ("drei", "three")]
    assert counts == {MALFORMED: 1}
    assert read(path.parent, "en", "de") == [("one", "eins"), ("three", "drei")]


@pytest.mark.parametrize("nested", [True, False])
def test_parquet(tmp_path: Path, nested: bool) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"translation": record} for record in TWO] if nested else TWO
    for split, part in (("train", rows), ("test", rows[:1])):
        datasets.Dataset.from_list(part).to_parquet(str(tmp_path / f"{split}.parquet"))
    assert read(tmp_path, "de", "en") == [("eins", "one"), ("drei", "three")]
    assert read(tmp_path, "de", "en", "test") == [("eins", "one")]
    assert read(tmp_path / "test.parquet", "de", "en") == [("eins", "one")]


def test_a_language_that_comes_late_is_found_and_what_lacks_it_counted(tmp_path: Path) -> None:
    records = [*TWO * 700, {"en": "late", "fr": "tard"}]
    path = write(tmp_path / "text", {"a.jsonl": objects(records)}) / "a.jsonl"
    assert open_parallel(str(path), None).languages == ["de", "en", "fr"]
    assert open_parallel(str(path), ("en", "fr")).pairs("train") == {("en", "fr")}
    found, counts = counted(path, "en", "fr")
    assert found == [("late", "tard")] and counts == {LACKING: 1400}


def test_what_is_odd_in_a_record_is_counted(tmp_path: Path) -> None:
    odd = {"en": "a \ud83d", "de": "b \U0001f600"}
    path = write(tmp_path / "text", {"a.jsonl": "[" * 200_000 + "\n" + objects([odd])}) / "a.jsonl"
    found, counts = counted(path, "en", "de")
    assert found == [("a \ufffd", "b \U0001f600")]
    assert counts == {MALFORMED: 1, HALF_CHARACTERS: 1}
    (tmp_path / "b.tsv").write_bytes(b"en\tde\none\xff\teins\n")
    found, counts = counted(tmp_path / "b.tsv", "en", "de")
    assert found == [("one\ufffd", "eins")] and counts == {INVALID_UTF8: 1}


@pytest.mark.parametrize("others", [("train.log",), ("train.log", "train.py"), ("train.foo",)])
def test_logs_beside_a_table_are_no_languages(tmp_path: Path, others: tuple[str, ...]) -> None:
    files = {"train.tsv": "en\tde\none\teins\n", **dict.fromkeys(others, "a\nb\n")}
    assert read(write(tmp_path / "text", files), "de", "en") == [("eins", "one")]


def test_line_pairs_in_a_wanted_language_come_before_records(tmp_path: Path) -> None:
    files = {"train.tsv": "en\tde\none\teins\n", "a.foo": "x\n", "a.swiss": "y\n"}
    folder = str(write(tmp_path / "text", files))
    assert open_parallel(folder, None, frozenset({"en"})).languages == ["de", "en"]
    named = open_parallel(folder, None, frozenset({"foo", "swiss"}))
    assert list(named.read("swiss", "foo", "train", Counts())) == [("y", "x")]


def test_a_text_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"a.en": "one\n", "a.de": "eins\n", "a.en.txt": "another\n"})
    for source in (tmp_path, tmp_path / "a"):
        with pytest.raises(ValueError, match=r"two files for one text: .*a\.en and .*a\.en\.txt"):
            open_parallel(str(source), None)
    assert line_pairs([tmp_path / "b.en", tmp_path / "b.en.gz"], frozenset()) == {}


def test_mistakes_say_what_is_right(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a.en": "x\ny\n", "a.de": "z\n", "b.tsv": "x y\tz\n"})
    with pytest.raises(ValueError, match=r"a\.en has more lines than .*a\.de, which has 1"):
        read(folder / "a", "en", "de")
    with pytest.raises(FileNotFoundError, match=r"no parallel text .*did you mean .*text"):
        open_parallel(str(tmp_path / "tekst"), None)
    with pytest.raises(ValueError, match=r"b\.tsv does not say its languages: .*en<TAB>de"):
        open_parallel(str(folder / "b.tsv"), None)
    with pytest.raises(ValueError, match="give the stem of line pairs"):
        open_parallel(str(folder / "a.en"), None)
    with pytest.raises(ValueError, match="no parallel text in"):
        open_parallel(str(write(tmp_path / "empty", {"a.en": "x"})), None)
    with pytest.raises(ValueError, match="there is builtin:phrases"):
        open_parallel("builtin:phrase", None)


def test_a_folder_like_a_hub_data_set(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    configs = "\n".join(
        f"- config_name: {pair}\n  data_files:\n  - split: train\n    path: {pair}.train.jsonl\n"
        f"  - split: validation\n    path: {pair}.validation.jsonl"
        for pair in ("de-en", "en-fr")
    )
    files = {"README.md": f"---\nconfigs:\n{configs}\n---\n"}
    for other, pair in (("de", "de-en"), ("fr", "en-fr")):
        for split in ("train", "validation"):
            rows = [{"translation": {"en": f"{split} {i}", other: f"{other} {i}"}} for i in (0, 1)]
            files[f"{pair}.{split}.jsonl"] = objects(rows)
    text = open_parallel(f"hf:{write(tmp_path / 'hub', files)}", None)
    assert text.languages == ["de", "en", "fr"]
    assert text.pairs("train") == {("de", "en"), ("en", "fr")} == text.pairs("validation")
    found = list(text.read("fr", "en", "validation", Counts()))
    assert found == [("fr 0", "validation 0"), ("fr 1", "validation 1")]


def test_the_built_in_phrases_take_their_languages_in_the_source() -> None:
    pytest.importorskip("babel")
    assert open_parallel("builtin:phrases:de,en", None).pairs("train") == {("de", "en")}
    text = open_parallel("builtin:phrases", ("en", "sv"))
    assert text.pairs("train") == {("en", "sv")} and text.pairs("validation") == set()
    with pytest.raises(ValueError, match=r"builtin:phrases has no 'dee'; did you mean"):
        open_parallel("builtin:phrases:dee,en", None)
