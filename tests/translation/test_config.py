"""Parallel text of every form is read, aligned and filtered; what is left out is counted."""

import gzip
import json
from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.data.counts import EMPTY, INVALID_UTF8, MALFORMED, Counts
from magneto.progress import SILENT
from magneto.translation.config import (
    DUPLICATE,
    HELD_OUT,
    KEPT,
    READ,
    TOO_LONG,
    UNLIKE,
    ParallelDataConfig,
    split_direction,
)
from magneto.translation.files import LineFiles, open_files
from magneto.translation.filter import unlike
from magneto.translation.prepare import PreparedParallel, prepare_parallel
from magneto.translation.records import split_of
from magneto.translation.sources import open_parallel


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        with (gzip.open if name.endswith(".gz") else open)(folder / name, "wb") as file:
            file.write(text.encode())
    return folder


def read(path: Path, first: str, second: str, split: str = "train") -> list[tuple[str, str]]:
    return list(open_parallel(str(path), None).read(first, second, split, Counts()))


def prepare(source: Path, **changes) -> PreparedParallel:
    values = {"tokenizer": "bytes", "max_length": 100, **changes}
    return prepare_parallel(ParallelDataConfig(source=str(source), **values), SILENT)


def sentences(prepared: PreparedParallel, split: str, pair: tuple[str, str]) -> list:
    part = getattr(prepared, split)
    decode = prepared.vocabulary.tokenizer.decode
    return [
        tuple(decode(part.side(number, side).tolist()) for side in (0, 1))
        for number in range(*part.ranges[pair])
    ]


def test_line_pairs_by_stem_folder_and_split(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {
        "train.en": "one\ntwo\u2028still two\r\nthree", "train.de": "eins\nzwei\ndrei\n",
        "train.fr.gz": "un\ndeux\ntrois\n", "val.en": "four\n", "val.de": "vier\n",
        "test_2016.en": "five\n", "test_2016.de": "fünf\n", "SOURCE.md": "# about\n",
    })  # fmt: skip
    assert read(folder, "de", "en") == [
        ("eins", "one"), ("zwei", "two\u2028still two"), ("drei", "three"),
    ]  # fmt: skip
    assert read(folder, "en", "fr")[2] == ("three", "trois")
    assert read(folder, "en", "de", "validation") == [("four", "vier")]
    assert read(folder / "train", "fr", "de") == [
        ("un", "eins"),
        ("deux", "zwei"),
        ("trois", "drei"),
    ]
    text = open_files(str(folder), None)
    assert text.languages == ["de", "en", "fr"]
    assert text.pairs("validation") == {("de", "en")} == text.pairs("test")


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        ("train", "train"), ("opus.de-en-train", "train"), ("opus.de-en-dev", "validation"),
        ("test_2016_flickr", "test"), ("valid1", "validation"), ("newstest2019", "train"),
        ("folder.test/europarl", "train"), ("training", "train"), ("a/val", "validation"),
    ],
)  # fmt: skip
def test_splits_by_name(stem: str, split: str) -> None:
    assert split_of(stem) == split


def test_wmt_names_are_one_stem(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {
        "newstest-src.eng.txt": "one\n", "newstest-ref.deu.txt": "eins\n",
        "newstest-ref.zho-CN.txt.gz": "一\n",
    })  # fmt: skip
    assert read(folder, "eng", "zho-CN") == [("one", "一")]
    assert isinstance(open_files(str(folder), None), LineFiles)


def test_files_that_are_not_aligned(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a.en": "one\ntwo\n", "a.de": "eins\n"})
    with pytest.raises(ValueError, match=r"a\.en has more lines than .*a\.de, which has 1"):
        read(folder / "a", "en", "de")


RECORDS = {
    "named.en-de.tsv": "one\teins\nodd\nthree\tdrei\n",
    "headed.tsv.gz": "en\tde\tfr\none\teins\tun\nodd\nthree\tdrei\ttrois\n",
    "flat.jsonl": "\n".join(
        [*(json.dumps({"en": e, "de": d}) for e, d in (("one", "eins"), ("three", "drei"))), "[}"]
    ),
    "nested.jsonl": "\n".join(
        json.dumps({"id": "x", "translation": t})
        for t in ({"en": "one", "de": "eins"}, {"en": "two"}, {"en": "three", "de": "drei"})
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "text", {name: RECORDS[name]}) / name
    counts = Counts()
    found = list(open_parallel(str(path), None).read("de", "en", "train", counts))
    assert found == [("eins", "one"), ("drei", "three")]
    assert counts[MALFORMED] == 1


def test_mistakes_say_what_is_right(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a.en": "x\n", "a.de": "y\n", "b.tsv": "x y\tz\n"})
    with pytest.raises(FileNotFoundError, match=r"no parallel text .*did you mean .*text"):
        open_parallel(str(tmp_path / "tekst"), None)
    with pytest.raises(ValueError, match="does not say its languages"):
        open_parallel(str(folder / "b.tsv"), None).pairs("train")
    with pytest.raises(ValueError, match="give the stem of line pairs"):
        open_parallel(str(folder / "a.en"), None)
    with pytest.raises(ValueError, match="no parallel text in"):
        open_parallel(str(write(tmp_path / "empty", {"a.en": "x"})), None)
    with pytest.raises(ValueError, match="there is builtin:phrases"):
        open_parallel("builtin:phrase", None)
    with pytest.raises(ValueError, match=r"no text for en-fr: it has de, en"):
        prepare(folder / "a", directions=("en-fr",))
    with pytest.raises(
        ValueError, match=r"no text with eng \(data\.pivot_language\): it has de, en"
    ):
        prepare(folder / "a", pivot_language="eng")
    with pytest.raises(
        ValueError, match=r"directions are two languages.*en(.|\n)*languages must be"
    ):
        ParallelDataConfig(directions=("en",), languages=("en",))
    assert split_direction("eng>zho-CN") == ("eng", "zho-CN")


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    good = [(f"sentence {i}", f"Satz {i}") for i in range(300)]
    odd = [("sentence 5", "Satz 5"), (" ", "leer"), ("x" * 99, "y" * 40), ("x" * 50, "kurz"),
           ("Hi", "Guten Tag")]  # fmt: skip
    lines = [*good, *odd]
    folder = write(tmp_path / "text", {
        "train.en": "".join(a + "\n" for a, _ in lines) + "bad \n",
        "train.de": "".join(b + "\n" for _, b in lines) + "x\n",
        "dev.en": "sentence 7\nnew\n", "dev.de": "Satz 7\nneu\n",
    })  # fmt: skip
    raw = (folder / "train.en").read_bytes().replace(b"bad ", b"bad \xff")
    (folder / "train.en").write_bytes(raw)
    prepared = prepare(folder)
    counts = prepared.counts["train"]["de", "en"]
    odd = (EMPTY, DUPLICATE, HELD_OUT, TOO_LONG, UNLIKE, INVALID_UTF8)
    assert counts == {READ: 306, KEPT: 301, **dict.fromkeys(odd, 1)}
    words = counts.describe(KEPT, READ)
    assert words.startswith("301 kept, 306 read (") and "1 duplicates" in words
    assert sentences(prepared, "validation", ("de", "en")) == [
        ("Satz 7", "sentence 7"),
        ("neu", "new"),
    ]
    train = sentences(prepared, "train", ("de", "en"))
    assert ("Guten Tag", "Hi") in train and ("Satz 7", "sentence 7") not in train


def test_scripts_are_not_of_unlike_length() -> None:
    english = "The situation in the country has become more difficult"
    assert not unlike((english, "该国局势变得更加困难"), 4)  # 5 characters to one, 2 bytes
    assert not unlike((english[:21], "நாட்டின் நிலைமை மிகவும்"), 3)  # as many characters
    assert unlike((english, "Die"), 4) and unlike(("Die", english), 4)
    assert not unlike(("Hi", "Guten Tag"), 4)


def test_a_held_out_sentence_is_held_out_in_every_language(tmp_path: Path) -> None:
    files = {
        f"a.{name}": "".join(f"{name} {i}\n" for i in range(400)) for name in ("en", "de", "zh")
    }
    prepared = prepare(write(tmp_path / "text", files), validation_fraction=0.2)
    assert prepared.directions == [("en", "de"), ("en", "zh"), ("de", "en"), ("zh", "en")]
    german = {en for _, en in sentences(prepared, "validation", ("de", "en"))}
    chinese = {en for en, _ in sentences(prepared, "validation", ("en", "zh"))}
    assert german == chinese and 40 < len(german) < 120
    assert german.isdisjoint(en for _, en in sentences(prepared, "train", ("de", "en")))


def test_prepared_once_and_anew_when_anything_changes(tmp_path: Path, cache: Path) -> None:
    folder = write(tmp_path / "text", {
        f"a.{name}": "".join(f"{name} {i}\n" for i in range(100)) for name in ("en", "de")
    })  # fmt: skip
    prepare(folder)
    made = {p: p.stat().st_mtime_ns for p in cache.rglob("*.bin")}
    prepare(folder)
    assert made == {p: p.stat().st_mtime_ns for p in cache.rglob("*.bin")}
    prepare(folder, max_ratio=2)
    prepare(folder, directions=("en-de",))
    assert len(list(cache.glob("parallel-*"))) == 3


def test_a_joint_tokenizer_and_an_older_vocabulary(tmp_path: Path) -> None:
    files = {
        f"a.{name}": "".join(f"{name} word{i % 9} {i}\n" for i in range(200))
        for name in ("en", "de")
    }
    folder = write(tmp_path / "text", files)
    first = prepare(folder, tokenizer="bpe", vocab_size=300)
    assert first.vocabulary.size == 302 and first.vocabulary.languages == ("de", "en")
    assert first.vocabulary.tag("en") == 301
    saved = tmp_path / "saved"
    saved.mkdir()
    first.vocabulary.save(saved)
    again = prepare(folder, tokenizer=str(saved), directions=("de-en",))
    assert again.vocabulary.languages == ("de", "en") and again.directions == [("de", "en")]
    write(folder, {"a.fr": "".join(f"fr {i}\n" for i in range(200))})
    with pytest.raises(ValueError, match=r"no language 'fr' \(there is de, en\)"):
        prepare(folder, tokenizer=str(saved))


def test_a_joint_sentencepiece_model(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    words = {"en": "the little house is old", "de": "das kleine Haus ist alt"}
    files = {
        f"a.{name}": "".join(f"{' '.join(text.split()[i % 3 :])} {i}\n" for i in range(500))
        for name, text in words.items()
    }
    prepared = prepare(write(tmp_path / "text", files), tokenizer="sentencepiece", vocab_size=310)
    assert prepared.vocabulary.size == 312
    train = sentences(prepared, "train", ("de", "en"))
    assert {de for de, _ in train} <= set(files["a.de"].splitlines())
    [tokens] = prepared.vocabulary.encode_source(["the house 7"], "de")
    assert tokens[0] == prepared.vocabulary.tag("de") and tokens[-1] == prepared.vocabulary.end
    assert prepared.vocabulary.decode(tokens[1:]) == "the house 7"


def test_evaluating_on_other_text_trains_on_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"test.en": "one\ntwo\n", "test.de": "eins\nzwei\n"})
    prepared = prepare(folder, validation_source=str(folder))
    assert sentences(prepared, "validation", ("de", "en")) == [("eins", "one"), ("zwei", "two")]
    assert prepared.train.ranges == {("de", "en"): (0, 0)}
    with pytest.raises(ValueError, match="it has no languages"):
        prepare(folder)


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
            rows = (
                {"translation": {"en": f"{split} {i}", other: f"{other} {i}"}} for i in range(3)
            )
            files[f"{pair}.{split}.jsonl"] = "\n".join(map(json.dumps, rows))
    folder = write(tmp_path / "hub", files)
    text = open_parallel(f"hf:{folder}", None)
    assert text.languages == ["de", "en", "fr"]
    assert text.pairs("train") == {("de", "en"), ("en", "fr")} == text.pairs("validation")
    found = list(text.read("fr", "en", "validation", Counts()))
    assert found == [(f"fr {i}", f"validation {i}") for i in range(3)]


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def unreachable(name: str) -> list[str]:
        raise ConnectionError(f"no way to {name}\nand more")

    monkeypatch.setattr(datasets, "get_dataset_config_names", unreachable)
    with pytest.raises(ConfigError) as found:
        open_parallel("hf:someone/pairs", None)
    assert found.value.lines == [
        "cannot load hf:someone/pairs (no way to someone/pairs); offline, give --data PATH"
    ]


def test_endings_are_languages_where_directions_name_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", {"a.de": "eins\n", "a.swiss": "eis\n"})
    with pytest.raises(ValueError, match="no parallel text"):
        open_parallel(str(folder), None)
    text = open_parallel(str(folder), None, frozenset({"de", "swiss"}))
    assert list(text.read("de", "swiss", "train", Counts())) == [("eins", "eis")]


def test_the_built_in_phrases_take_their_languages_in_the_source() -> None:
    pytest.importorskip("babel")
    assert open_parallel("builtin:phrases:de,en", None).pairs("train") == {("de", "en")}
    with pytest.raises(ValueError, match=r"builtin:phrases has no 'dee'"):
        open_parallel("builtin:phrases:dee,en", None)
