"""Parallel text of every form is read, aligned, told apart by split and language, and held out."""

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from magneto.data.problems import EMPTY, INVALID_UTF8, MALFORMED, OTHER_SPLITS, Counts
from magneto.translation.config import (
    DUPLICATE,
    HELD_OUT,
    KEPT,
    LENGTH_MISMATCH,
    READ,
    TOO_LONG,
    ParallelDataConfig,
    SentencePair,
)
from magneto.translation.phrases import phrase_languages, phrases
from magneto.translation.prepare import PreparedParallel
from magneto.translation.text import (
    MISSING_LANGUAGE,
    TAGS,
    lengths_mismatch,
    open_parallel,
    parallel_fingerprint,
    read_test_texts,
    read_validation_texts,
    training_directions,
)
from tests.unit.translation.test_prepare import prepare

MARK = "\ufeff"
TWO = [{"en": "one", "de": "eins"}, {"en": "three", "de": "drei"}]


def write(folder: Path, files: Mapping[str, str | list[str]]) -> Path:
    """Write texts, or lines, into a folder."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        pack = gzip.compress if name.endswith(".gz") else bytes
        whole = text if isinstance(text, str) else "".join(f"{line}\n" for line in text)
        (folder / name).write_bytes(pack(whole.encode()))
    return folder


def objects(records: list[dict]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def read(path: Path | str, first: str, second: str, split: str = "train") -> list[SentencePair]:
    return list(open_parallel(str(path), None).read(first, second, split, Counts()))


def counted(path: Path, first: str, second: str) -> tuple[list[SentencePair], Counts]:
    counts = Counts()
    return list(open_parallel(str(path), None).read(first, second, "train", counts)), counts


def test_line_pairs_by_stem_folder_and_split(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {
        "train.en": f"{MARK}one\ntwo\u2028still two\r\nthree", "train.de": "eins\nzwei\n drei \n",
        "train.fr.gz": f"{MARK}un\ndeux\n{MARK}trois\n", "val.en": "four\n", "val.de": "vier\n",
        "opus.en-de-test.en": "five\n", "opus.en-de-test.de": "fünf\n", "SOURCE.md": "# about\n",
    })  # fmt: skip
    assert read(folder, "de", "en") == [
        ("eins", "one"), ("zwei", "two\u2028still two"), (" drei ", "three"),
    ]  # fmt: skip
    assert read(folder, "en", "fr")[2] == ("three", f"{MARK}trois")
    assert read(folder, "en", "de", "validation") == [("four", "vier")]
    assert read(folder / "train", "fr", "de")[0] == ("un", "eins")
    text = open_parallel(str(folder), None)
    assert text.languages == ["de", "en", "fr"]
    assert text.pairs("validation") == {("de", "en")} == text.pairs("test")
    wmt = write(tmp_path / "wmt", {
        "newstest-src.eng.txt": "one\n", "newstest-ref.deu.txt": "eins\n",
        "newstest-ref.zho-CN.txt.gz": "一\n",
    })  # fmt: skip
    assert read(wmt, "eng", "zho-CN", "test") == [("one", "一")]
    opus = write(tmp_path / "opus", {f"a.de-en.{end}": "one\n" for end in ("de", "en", "ids")})
    assert open_parallel(str(opus), None).languages == ["de", "en"]
    lines = {"a.foo": "x\n", "a.swiss": "y\n", "a.bar": "z\n"}
    files = {"train.tsv": "en\tde\none\teins\n", **lines}
    odd = str(write(tmp_path / "odd", files))
    assert open_parallel(odd, None, frozenset({"en"})).languages == ["de", "en"]
    wanted = open_parallel(odd, None, frozenset({"foo", "swiss"}))
    assert list(wanted.read("swiss", "foo", "train", Counts())) == [("y", "x")]


def test_files_of_iwslt_and_wmt_have_sentences_among_tags(tmp_path: Path) -> None:
    head, segment = (
        ["<talkid>1</talkid>", "<title>Talk</title>"],
        '<seg id="1"> {} &amp; more </seg>',
    )
    folder = write(tmp_path, {
        "train.tags.de-en.de": [*head, "eins"], "train.tags.de-en.en": ["<url>x</url>", "one"],
        "a.dev2010.de-en.de.xml": ["<doc>", segment.format("zwei"), "</doc>"],
        "a.dev2010.de-en.en.xml": ["<mteval>", "<doc>", segment.format("two")],
        "newstest2014-deen-src.de.sgm": segment.format("drei"), "b.en-de.xml": "",
        "newstest2014-deen-ref.en.sgm": segment.format("three"), "b.xx-yy.xml": "",
    })  # fmt: skip
    assert counted(folder, "de", "en") == ([("eins", "one")], {TAGS: 3})
    assert read(folder, "de", "en", "validation") == [("zwei & more", "two & more")]
    assert read(folder, "de", "en", "test") == [("drei & more", "three & more")]


def test_a_test_split_without_translations_is_not_read(tmp_path: Path) -> None:
    rows = {"train.csv": "id,en,de\n1,one,eins\n2,two,zwei\n", "test.csv": "id,en\n3,three\n"}
    source, config = str(write(tmp_path, rows)), ParallelDataConfig(source="text")
    assert read(source, "en", "de") == [("one", "eins"), ("two", "zwei")]
    with pytest.raises(ValueError, match="test split without translations"):
        read_test_texts(source, config, ["en", "de"], None, None)


def test_folders_and_a_column_tell_the_split(tmp_path: Path) -> None:
    """What lies in dev/ or test/ is not trained on; a folder above the source says nothing."""
    for name in ("Train", "dev", "test"):
        write(tmp_path / "dev" / name, {"a.en": f"{name}\n", "a.de": f"{name}\n"})
        write(tmp_path / "dev" / "tables" / name, {"a.tsv": f"en\tde\n{name}\t{name}\n"})
    for source in (tmp_path / "dev", tmp_path / "dev" / "tables"):
        for split, name in (("train", "Train"), ("validation", "dev"), ("test", "test")):
            assert read(source, "en", "de", split) == [(name, name)]
    assert read(tmp_path / "dev" / "test", "en", "de") == [("test", "test")]
    rows = "en\tde\tsplit\none\teins\ttrain\ntwo\tzwei\tdev\nthree\tdrei\tunsure\n"
    path = write(tmp_path / "rows", {"a.tsv": rows}) / "a.tsv"
    assert open_parallel(str(path), None).languages == ["de", "en"]
    assert counted(path, "de", "en") == ([("eins", "one")], {OTHER_SPLITS: 1})
    assert read(path, "de", "en", "validation") == [("zwei", "two")]


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
    path = write(tmp_path / "text", {name: RECORDS[name], "train.log": "a\n", "b.py": "b\n"}) / name
    found, counts = counted(path, "de", "en")
    assert found == [("eins", "one"), ("drei", "three")]
    assert counts == {MALFORMED: 1}
    assert read(path.parent, "en", "de") == [("one", "eins"), ("three", "drei")]


def test_a_language_that_comes_late_is_found_and_what_lacks_it_counted(tmp_path: Path) -> None:
    records = [*TWO * 700, {"en": "late", "fr": "tard"}]
    path = write(tmp_path / "text", {"a.jsonl": objects(records)}) / "a.jsonl"
    assert open_parallel(str(path), None).languages == ["de", "en", "fr"]
    assert open_parallel(str(path), ("en", "fr")).pairs("train") == {("en", "fr")}
    found, counts = counted(path, "en", "fr")
    assert found == [("late", "tard")] and counts == {MISSING_LANGUAGE: 1400}
    before = parallel_fingerprint(str(path), None, frozenset())
    write(path.parent, {path.name: objects(TWO)})
    assert parallel_fingerprint(str(path), None, frozenset()) != before, "prepared anew"


def test_titles_of_columns_are_languages_if_they_are_codes_or_are_named(tmp_path: Path) -> None:
    table = "id,English,German,translation,url\n1,one,eins,une,http\n2,two,zwei,deux,http\n"
    path = str(write(tmp_path / "text", {"a.csv": table}) / "a.csv")
    text = open_parallel(path, ("English", "German"))
    assert text.pairs("train") == {("English", "German")}
    found = list(text.read("English", "German", "train", Counts()))
    assert found == [("one", "eins"), ("two", "zwei")]
    with pytest.raises(ValueError, match=r"two languages.*--data\.languages english,german"):
        open_parallel(path, None)
    # Row numbers are not Indonesian.
    rows = {"a.csv": "id,en,de\n1,one,eins\n", "b.csv": "id,en\nsatu,one\n"}
    folder = write(tmp_path / "numbers", rows)
    assert open_parallel(str(folder / "a.csv"), None).languages == ["de", "en"]
    assert open_parallel(str(folder / "b.csv"), None).languages == ["en", "id"]


def test_mistakes_say_what_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "text", {"a.en": "x\ny\n", "a.de": "z\n", "b.tsv": "x y\tz\n"})
    twice = write(tmp_path / "twice", {"a.en": "one\n", "a.de": "eins\n", "a.en.txt": "other\n"})
    for source, match in (
        (folder / "a", r"a\.en has more lines than .*a\.de \(1\)"),
        (folder / "b.tsv", r"b\.tsv has no header with two languages.*en<TAB>de"),
        (folder / "a.en", r"no parallel text in .*a\.en. Give the folder"),
        (twice, r"two files for one text: .*a\.en and .*a\.en\.txt"),
        ("builtin:phrases:dee,en", r"builtin:phrases has no language 'dee'; did you mean"),
    ):
        with pytest.raises(ValueError, match=match):
            read(source, "en", "de")
    monkeypatch.chdir(folder)
    with pytest.raises(FileNotFoundError, match=r"^no parallel text at none/a$"):
        read("none/a", "en", "de")


def test_parquet_and_a_folder_like_a_hub_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = write(tmp_path / "flat", {})
    for split, part in (("train", TWO), ("test", TWO[:1])):
        datasets.Dataset.from_list(part).to_parquet(str(folder / f"{split}.parquet"))
    assert read(folder, "de", "en") == [("eins", "one"), ("drei", "three")]
    assert read(folder, "de", "en", "test") == [("eins", "one")]
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
    selected = open_parallel(f"hf:{tmp_path / 'hub'}", ("en", "fr"))
    assert selected.pairs("train") == {("en", "fr")} == selected.pairs("validation")
    assert open_parallel(f"hf:{tmp_path / 'hub'}:en-fr", None).languages == ["en", "fr"]
    before = parallel_fingerprint(str(folder), None, frozenset())
    write(folder, {"test.parquet": "x"})
    assert parallel_fingerprint(str(folder), None, frozenset()) != before


def test_built_in_phrases_are_the_same_in_every_pair() -> None:
    pytest.importorskip("babel")
    languages = phrase_languages()
    assert 90 < len(languages) < 200 and {"en", "de", "zh", "ar", "sw", "ta"} <= set(languages)
    german, finnish = (list(phrases("en", name, 300)) for name in ("de", "fi"))
    assert len(german) > 280 and ("December 1990", "Dezember 1990") in german
    assert [en for en, _ in german] == [en for en, _ in finnish]
    assert [(b, a) for a, b in german] == list(phrases("de", "en", 300))
    # Units without words are left out.
    assert not any("length-" in zh or "mass-" in zh for _, zh in phrases("en", "zh", 500))
    text = open_parallel("builtin:phrases", ("en", "sv"))
    assert text.pairs("train") == {("en", "sv")} and text.pairs("validation") == set()


THERE = {("de", "en"), ("de", "fr"), ("en", "fr")}


def directions(**changes) -> list[tuple[str, str]]:
    config = ParallelDataConfig(source="text", **changes)
    known = {pair for pair in THERE if not config.languages or {*pair} <= {*config.languages}}
    return training_directions(config, known, ["de", "en", "fr"])


def test_all_directions_with_the_pivot_or_those_given() -> None:
    assert directions() == [("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en")]
    assert directions(languages=("fr", "en")) == [("en", "fr"), ("fr", "en")]
    # The languages a model knows may be more than there are, where directions are given.
    assert directions(directions=("de-fr",), languages=("de", "fr", "xx")) == [("de", "fr")]
    alone = training_directions(ParallelDataConfig(), {("src", "tgt")}, ["src", "tgt"])
    assert alone == [("src", "tgt"), ("tgt", "src")]
    with pytest.raises(ValueError, match="pairs another language with xx"):
        training_directions(ParallelDataConfig(pivot_language="xx"), {("src", "tgt")}, ["src"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"languages": ("en", "de", "frr")}, "pairs en with frr (data.languages); did you mean"),
        ({"languages": ("de", "fr")}, "languages must include en (the pivot language)"),
        ({"pivot_language": "eng"}, "with eng (data.pivot_language). It has de, en, fr. Give --da"),
        ({"directions": ("en-es",)}, "text has no text for en-es. It has de, en, fr"),
    ],
)
def test_a_language_that_is_not_there_is_an_error(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        directions(**changes)


def test_scripts_are_not_of_unlike_length() -> None:
    english = "The situation in the country has become more difficult"
    # 5 characters to one, 2 bytes; then as many characters.
    assert not lengths_mismatch((english, "该国局势变得更加困难"), 4)
    assert not lengths_mismatch((english[:21], "நாட்டின் நிலைமை மிகவும்"), 3)
    assert lengths_mismatch((english, "Die"), 4) and lengths_mismatch(("Die", english), 4)
    # The ratio itself and 20 characters more are no mismatch; beyond both there is one.
    for one, other, wrong in ((40, 10, False), (41, 10, True), (21, 1, False), (22, 1, True)):
        assert lengths_mismatch(("a" * one, "a" * other), 4) is wrong


def sentences(prepared: PreparedParallel, split: str, pair: tuple[str, str]) -> list:
    part = getattr(prepared, split)
    decode = prepared.vocabulary.tokenizer.decode
    return [
        tuple(decode(part.side(number, side).tolist()) for side in (0, 1))
        for number in range(*part.ranges[pair])
    ]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    odd = [*[("sentence 5", "Satz 5")] * 2, (" ", "leer"), ("x" * 49, "y" * 40), ("x" * 50, "kurz"),
           ("Hi", "Guten Tag"), ("bad ", "x"), ("sentence 5", "Satz 6"),
           ("sentence 6", "Satz 5")]  # fmt: skip
    lines = [*((f"sentence {i}", f"Satz {i}") for i in range(300)), *odd]
    folder = write(tmp_path, {
        "train.en": [a for a, _ in lines], "train.de": [b for _, b in lines],
        "dev.en": ["sentence 7", "new"], "dev.de": ["Satz 7", "neu"],
    })  # fmt: skip
    raw = (folder / "train.en").read_bytes().replace(b"bad ", b"bad \xff")
    (folder / "train.en").write_bytes(raw)
    prepared = prepare(folder)
    counts = prepared.counts["train"]["de", "en"]
    kinds = (EMPTY, HELD_OUT, TOO_LONG, LENGTH_MISMATCH, INVALID_UTF8)
    assert counts == {READ: 309, KEPT: 303, DUPLICATE: 2, **dict.fromkeys(kinds, 1)}
    assert sentences(prepared, "validation", ("de", "en")) == [
        ("Satz 7", "sentence 7"), ("neu", "new"),
    ]  # fmt: skip
    train = sentences(prepared, "train", ("de", "en"))
    assert ("Guten Tag", "Hi") in train and ("Satz 7", "sentence 7") not in train


def test_a_held_out_sentence_is_held_out_in_every_language(tmp_path: Path) -> None:
    texts = {f"a.{name}": [f"{name} {i}" for i in range(400)] for name in ("en", "de", "zh")}
    folder = write(tmp_path, texts)
    prepared = prepare(folder, validation_fraction=0.2)
    german = {en for _, en in sentences(prepared, "validation", ("de", "en"))}
    chinese = {en for en, _ in sentences(prepared, "validation", ("en", "zh"))}
    assert german == chinese and 40 < len(german) < 120
    assert german.isdisjoint(en for _, en in sentences(prepared, "train", ("de", "en")))
    prepared = prepare(folder, validation_fraction=1e-9)
    assert len(sentences(prepared, "validation", ("de", "en"))) == 1  # and not none


def test_evaluating_on_other_text_trains_on_nothing(tmp_path: Path) -> None:
    """The test split is preferred, as for translations."""
    folder = write(tmp_path, {
        "test.en": ["one", "two"], "test.de": ["eins", "zwei"], "dev.en": "x\n", "dev.de": "y\n",
    })  # fmt: skip
    prepared = prepare(folder, validation_source=str(folder))
    assert sentences(prepared, "validation", ("de", "en")) == [("eins", "one"), ("zwei", "two")]
    assert prepared.train.ranges == {("de", "en"): (0, 0)}
    with pytest.raises(ValueError, match="no training text in two languages"):
        prepare(folder)


def test_separate_validation_text_leaves_the_source_to_training(tmp_path: Path) -> None:
    """Its validation split is read, else its test split, and never a training split beside them."""
    languages = ("de", "en")
    source = write(tmp_path / "in", {f"a.{n}": [f"{n} {i}" for i in range(50)] for n in languages})
    other = write(tmp_path / "other", {f"{split}.{name}": [f"{name} {split}"] for name in languages
                                       for split in ("train", "dev", "test")})  # fmt: skip
    for split in ("dev", "test"):
        prepared = prepare(source, validation_source=str(other), validation_fraction=0.5)
        assert prepared.train.ranges == {languages: (0, 50)}
        assert sentences(prepared, "validation", languages) == [(f"de {split}", f"en {split}")]
        for name in languages:
            (other / f"{split}.{name}").unlink()


def test_references_have_a_limit_an_order_and_two_sides(tmp_path: Path) -> None:
    texts = {f"{split}.{name}": [f"{name} {split} {i}" for i in range(5)]
             for split in ("train", "dev") for name in ("en", "de", "fr", "it")}  # fmt: skip
    source, known = str(write(tmp_path, texts)), ["de", "en", "fr"]
    config = ParallelDataConfig(source=source, languages=("de", "en", "fr"), validation_limit=3)
    for limit, count in ((None, 3), (2, 2), (4, 3)):
        found = read_validation_texts(config, limit).texts
        assert found["en", "de"] == [(f"en dev {i}", f"de dev {i}") for i in range(count)]
        assert found["de", "en"] == [(b, a) for a, b in found["en", "de"]]
    tested = read_test_texts(source, config, known, None, 2)
    assert tested.texts["fr", "en"] == [("fr dev 0", "en dev 0"), ("fr dev 1", "en dev 1")]
    assert tested.split == "validation"
    # A direction of the run that the source lacks is left out; one that is asked for is an error.
    own = replace(config, languages=None, directions=("en-xx", "de-fr"))
    assert list(read_test_texts(source, own, known, None, None).texts) == [("de", "fr")]
    assert list(read_test_texts(source, own, known, ["fr-en"], None).texts) == [("fr", "en")]
    with pytest.raises(ValueError, match="no validation text for en-xx"):
        read_test_texts(source, own, known, ["en-xx"], None)
    # A model of two languages without the pivot is trained, and tested, in both directions.
    own = replace(config, languages=None)
    assert list(read_test_texts(source, own, ["de", "fr"], None, None).texts) == [
        ("de", "fr"), ("fr", "de"),
    ]  # fmt: skip
