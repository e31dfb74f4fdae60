"""What is trained and validated on: directions, filters, what is held out, and what is counted."""

import re
from pathlib import Path

import pytest

from magneto.data.problems import EMPTY, INVALID_UTF8
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
from magneto.translation.prepare import PreparedParallel, prepare_parallel
from magneto.translation.text import unlike, wanted_directions

THERE = {("de", "en"), ("de", "fr"), ("en", "fr")}


def directions(**changes) -> list[tuple[str, str]]:
    config = ParallelDataConfig(source="text", **changes)
    there = {pair for pair in THERE if not config.languages or {*pair} <= {*config.languages}}
    return wanted_directions(config, there, ["de", "en", "fr"])


def prepare(source: Path, **changes) -> PreparedParallel:
    values = {"tokenizer": "bytes", "max_length": 100, **changes}
    return prepare_parallel(ParallelDataConfig(source=str(source), **values), SILENT)


def write(folder: Path, texts: dict[str, list[str]]) -> Path:
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def sentences(prepared: PreparedParallel, split: str, pair: tuple[str, str]) -> list:
    part = getattr(prepared, split)
    decode = prepared.vocabulary.tokenizer.decode
    return [
        tuple(decode(part.side(number, side).tolist()) for side in (0, 1))
        for number in range(*part.ranges[pair])
    ]


def test_all_with_the_pivot_or_those_given() -> None:
    assert directions() == [("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en")]
    assert directions(languages=("fr", "en")) == [("en", "fr"), ("fr", "en")]
    assert directions(directions=("de-fr",)) == [("de", "fr")]
    # The languages a model knows may be more than there are, where directions are given.
    assert directions(directions=("de-fr",), languages=("de", "fr", "xx")) == [("de", "fr")]
    assert split_direction("eng>zho-CN") == ("eng", "zho-CN")
    alone = wanted_directions(ParallelDataConfig(), {("src", "tgt")}, ["src", "tgt"])
    assert alone == [("src", "tgt"), ("tgt", "src")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"languages": ("en", "de", "frr")}, "frr (data.languages) with en to train on; did you m"),
        ({"languages": ("de", "fr")}, "languages lack en (the pivot language)"),
        ({"languages": ("de", "fr"), "directions": ("de-en",)}, "lack en (a direction's)"),
        ({"pivot_language": "eng"}, "with eng (data.pivot_language): it has de, en, fr; give --da"),
        ({"directions": ("en-es",)}, "text has no text for en-es: it has de, en, fr"),
        ({"directions": ("en",), "languages": ("en",)}, "directions are two languages"),
    ],
)
def test_a_language_that_is_not_there_is_an_error(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        directions(**changes)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    odd = [("sentence 5", "Satz 5"), (" ", "leer"), ("x" * 99, "y" * 40), ("x" * 50, "kurz"),
           ("Hi", "Guten Tag"), ("bad ", "x")]  # fmt: skip
    lines = [*((f"sentence {i}", f"Satz {i}") for i in range(300)), *odd]
    folder = write(tmp_path, {
        "train.en": [a for a, _ in lines], "train.de": [b for _, b in lines],
        "dev.en": ["sentence 7", "new"], "dev.de": ["Satz 7", "neu"],
    })  # fmt: skip
    raw = (folder / "train.en").read_bytes().replace(b"bad ", b"bad \xff")
    (folder / "train.en").write_bytes(raw)
    prepared = prepare(folder)
    counts = prepared.counts["train"]["de", "en"]
    kinds = (EMPTY, DUPLICATE, HELD_OUT, TOO_LONG, UNLIKE, INVALID_UTF8)
    assert counts == {READ: 306, KEPT: 301, **dict.fromkeys(kinds, 1)}
    assert sentences(prepared, "validation", ("de", "en")) == [
        ("Satz 7", "sentence 7"), ("neu", "new"),
    ]  # fmt: skip
    train = sentences(prepared, "train", ("de", "en"))
    assert ("Guten Tag", "Hi") in train and ("Satz 7", "sentence 7") not in train


def test_scripts_are_not_of_unlike_length() -> None:
    english = "The situation in the country has become more difficult"
    assert not unlike((english, "该国局势变得更加困难"), 4)  # 5 characters to one, 2 bytes
    assert not unlike((english[:21], "நாட்டின் நிலைமை மிகவும்"), 3)  # as many characters
    assert unlike((english, "Die"), 4) and unlike(("Die", english), 4)
    assert not unlike(("Hi", "Guten Tag"), 4)


def test_a_held_out_sentence_is_held_out_in_every_language(tmp_path: Path) -> None:
    texts = {f"a.{name}": [f"{name} {i}" for i in range(400)] for name in ("en", "de", "zh")}
    prepared = prepare(write(tmp_path, texts), validation_fraction=0.2)
    german = {en for _, en in sentences(prepared, "validation", ("de", "en"))}
    chinese = {en for en, _ in sentences(prepared, "validation", ("en", "zh"))}
    assert german == chinese and 40 < len(german) < 120
    assert german.isdisjoint(en for _, en in sentences(prepared, "train", ("de", "en")))


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_no_side_is_left_empty(tmp_path: Path, fraction: float) -> None:
    folder = write(tmp_path, {f"a.{name}": [f"{name} {i}" for i in range(9)] for name in "ab"})
    (tmp_path / "a.a").rename(tmp_path / "a.en")
    (tmp_path / "a.b").rename(tmp_path / "a.de")
    prepared = prepare(folder, validation_fraction=fraction)
    sizes = [len(sentences(prepared, split, ("de", "en"))) for split in ("train", "validation")]
    assert sorted(sizes) == [1, 8]


def test_evaluating_on_other_text_trains_on_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, {"test.en": ["one", "two"], "test.de": ["eins", "zwei"]})
    prepared = prepare(folder, validation_source=str(folder))
    assert sentences(prepared, "validation", ("de", "en")) == [("eins", "one"), ("zwei", "two")]
    assert prepared.train.ranges == {("de", "en"): (0, 0)}
    with pytest.raises(ValueError, match="no text in two languages to train on"):
        prepare(folder)
