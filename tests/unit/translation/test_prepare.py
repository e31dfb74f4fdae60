"""What is prepared is written whole, counted for both splits, and held no longer than needed."""

from pathlib import Path

import numpy as np
import pytest

from magneto.data.problems import EMPTY, Counts
from magneto.data.tokenizer import train_sentencepiece
from magneto.progress import SILENT
from magneto.translation.config import (
    BEYOND_LIMIT,
    DUPLICATE,
    KEPT,
    READ,
    TOO_LONG,
    ParallelDataConfig,
)
from magneto.translation.prepare import Preparation, PreparedParallel, prepare_parallel

PAIRS = [("de", "en"), ("en", "fr")]
LINES = 3000  # more than two batches


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("en", "de", "fr"):
        lines = [f"{name} number {i}" for i in range(LINES)]
        (tmp_path / f"a.train.{name}").write_text("\n".join([*lines, name * 98]) + "\n")
        valid = [f"{name} {i}" for i in range(20)]
        (tmp_path / f"a.valid.{name}").write_text("\n".join([*valid, "", name * 99, *valid]) + "\n")
    return tmp_path


def config(source: Path, **changes) -> ParallelDataConfig:
    return ParallelDataConfig(
        source=str(source), **{"tokenizer": "bytes", "max_length": 50, **changes}
    )


def prepare(source: Path, **changes) -> PreparedParallel:
    return prepare_parallel(config(source, **changes), SILENT)


def test_both_splits_are_counted(source: Path) -> None:
    counts = prepare(source).counts
    expected = Counts({READ: LINES + 1, KEPT: LINES, TOO_LONG: 1})
    assert counts["train"] == dict.fromkeys(PAIRS, expected)
    expected = Counts({READ: 42, KEPT: 20, EMPTY: 1, TOO_LONG: 1, DUPLICATE: 20})
    assert counts["validation"] == dict.fromkeys(PAIRS, expected)
    counts = prepare(source, validation_limit=5).counts["validation"]["de", "en"]
    assert counts == {READ: 42, KEPT: 5, EMPTY: 1, DUPLICATE: 20, BEYOND_LIMIT: 16}
    assert "16 beyond the limit" in counts.describe(KEPT, READ)


def test_what_is_left_out_is_said_of_both_splits(source: Path) -> None:
    train = f"{LINES:,} kept, {LINES + 1:,} read (1 too long)"
    valid = "20 kept, 42 read (20 duplicates, 1 empty text left out, 1 too long)"
    prepared = prepare(source, directions=("en-de",))
    numbers = [f"{len(split.tokens):,}" for split in (prepared.train, prepared.validation)]
    assert list(prepared.describe("here")) == [
        f"de-en: {train}",
        f"here: 1 directions, {LINES:,} pairs, {numbers[0]} tokens",
        f"validation: de-en: {valid}",
        f"validation: 1 directions, 20 pairs, {numbers[1]} tokens",
    ]
    alone = prepare(source, validation_source=str(source), directions=("en-de",))
    assert all(line.startswith("validation: ") for line in alone.describe("here"))


def test_every_batch_is_written_in_order(source: Path) -> None:
    prepared = prepare(source)
    decode = prepared.vocabulary.tokenizer.decode
    assert prepared.train.ranges == {PAIRS[0]: (0, LINES), PAIRS[1]: (LINES, 2 * LINES)}
    assert prepared.train.offsets[-1] == len(prepared.train.tokens)
    for i in (0, 1, 1023, 1024, 2048, LINES - 1):
        sides = [decode(prepared.train.side(LINES + i, side).tolist()) for side in (0, 1)]
        assert sides == [f"en number {i}", f"fr number {i}"]


def test_sentencepiece_learns_from_as_many_lines_as_it_is_told(source, monkeypatch) -> None:
    pytest.importorskip("sentencepiece")
    asked: list[int] = []

    def train(texts, kind, size: int, sample: int) -> bytes:
        asked.append(sample)
        return train_sentencepiece(texts, kind, size, sample)

    monkeypatch.setattr("magneto.translation.prepare.train_sentencepiece", train)
    for lines in (700, 900, 900):
        prepared = prepare(source, tokenizer="sentencepiece", vocab_size=290, tokenizer_lines=lines)
    assert asked == [700, 900]  # another number is another vocabulary; the same is found
    [tokens] = prepared.vocabulary.encode_source(["the house 7"], "de")
    assert tokens[0] == prepared.vocabulary.tag("de") and tokens[-1] == prepared.vocabulary.end
    assert prepared.vocabulary.decode(tokens[1:]) == "the house 7"
    with pytest.raises(ValueError, match="tokenizer_lines must be 1 or more"):
        config(source, tokenizer_lines=0)


def test_the_vocabulary_that_came_out_finds_the_same_tokens(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run keeps its vocabulary; to open it must not tokenise the text again."""
    first = prepare(source, tokenizer="bpe", vocab_size=300)
    (tmp_path / "run").mkdir()
    first.vocabulary.save(tmp_path / "run")
    monkeypatch.setattr(Preparation, "fill", lambda *_: pytest.fail("tokenised again"))
    again = prepare(source, tokenizer=str(tmp_path / "run"), vocab_size=300)
    assert np.array_equal(again.train.tokens, first.train.tokens)


def test_prepared_once_and_anew_when_anything_changes(source: Path, cache: Path) -> None:
    prepare(source)
    made = {p: p.stat().st_mtime_ns for p in cache.rglob("*.bin")}
    prepare(source)
    assert made == {p: p.stat().st_mtime_ns for p in cache.rglob("*.bin")}
    prepare(source, max_ratio=2)
    prepare(source, directions=("en-de",))
    assert len(list(cache.glob("parallel-*"))) == 3


def test_a_joint_tokenizer_and_an_older_vocabulary(source: Path, tmp_path: Path) -> None:
    both = prepare(source, tokenizer="bpe", vocab_size=300, directions=("en-de", "de-en"))
    assert both.vocabulary.size == 302 and both.vocabulary.languages == ("de", "en")
    assert both.vocabulary.tag("en") == 301
    saved = tmp_path / "saved"
    saved.mkdir()
    both.vocabulary.save(saved)
    again = prepare(source, tokenizer=str(saved), directions=("de-en",))
    assert again.vocabulary.languages == ("de", "en") and again.directions == [("de", "en")]
    with pytest.raises(ValueError, match=r"no language 'fr' \(there is de, en\)"):
        prepare(source, tokenizer=str(saved))
