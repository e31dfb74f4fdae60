"""Normalisers are named with their version, and do what Whisper's paper says of them."""

import pytest

from magneto.config import ConfigError
from magneto.speech.scores import text_normaliser

transformers = pytest.importorskip("transformers")


def test_english() -> None:
    made = text_normaliser("whisper-english")
    said = "Mr. Smith's  um twenty-one dogs didn't bark [noise], OK?"
    assert made.normalise(said) == "mister smith is 21 dogs did not bark ok"
    assert made.normalise("the colour") == "the colour"
    assert made.title == (
        f"whisper-english (transformers {transformers.__version__}, British spellings left as they "
        "are)"
    )


def test_any_language() -> None:
    assert (
        text_normaliser("whisper-basic").normalise("Grüße, (lacht) aus Köln!") == "grüße aus köln "
    )


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"no normaliser 'whisper_english'.*whisper-english"):
        text_normaliser("whisper_english")
