"""Error rates against counts made by hand; normalisers do what Whisper's paper says of them."""

import pytest

from magneto.config import ConfigError
from magneto.speech.scores import (
    ErrorCounts,
    character_errors,
    errors_by_word,
    text_normaliser,
    word_errors,
)

pytest.importorskip("jiwer")


def test_words() -> None:
    references = ["one two three", "four  five", "", "six"]
    hypotheses = ["one too three three", "five", "a b", ""]
    found = word_errors(references, hypotheses)
    assert found == ErrorCounts(hits=3, substitutions=1, deletions=2, insertions=3)
    assert found.units == 6 and found.rate == 1.0


def test_characters() -> None:
    assert character_errors(["ab c"], ["abc"]) == ErrorCounts(3, 0, 1, 0)


def test_nothing_said() -> None:
    assert word_errors([], []).rate == 0
    assert word_errors(["", ""], ["", "x"]) == ErrorCounts(insertions=1)
    with pytest.raises(ValueError, match="1 references and 0"):
        word_errors(["a"], [])


def test_by_word() -> None:
    rows = errors_by_word(["one two one", "two", ""], ["one too", "two two", "x"])
    assert [(r.word, r.said, r.right, r.missing, r.instead) for r in rows] == [
        ("one", 2, 1, 1, []), ("two", 2, 1, 0, [("too", 1)]), ("", 0, 0, 0, [("x", 1), ("two", 1)]),
    ]  # fmt: skip


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"no normaliser 'whisper_english'.*whisper-english"):
        text_normaliser("whisper_english")
