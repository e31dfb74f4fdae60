"""Built-in phrases are real, many, the same everywhere and in every language."""

import pytest

from magneto.translation.phrases import phrase_languages, phrases

pytest.importorskip("babel")


def test_about_a_hundred_languages_and_more() -> None:
    languages = phrase_languages()
    assert 90 < len(languages) < 200
    assert {"en", "de", "zh", "ar", "sw", "ta", "fi"} <= set(languages)


def test_phrases_are_the_same_in_every_pair() -> None:
    german, finnish = (list(phrases("en", name, 300)) for name in ("de", "fi"))
    assert len(german) > 280
    assert [en for en, _ in german] == [en for en, _ in finnish]
    assert german == list(phrases("en", "de", 300))
    assert [(b, a) for a, b in german] == list(phrases("de", "en", 300))
    assert sum(a == b for a, b in german) < 0.05 * len(german)
    assert ("December 1990", "Dezember 1990") in german


def test_units_without_words_are_left_out() -> None:
    chinese = [zh for _, zh in phrases("en", "zh", 500)]
    assert not any("length-" in text or "mass-" in text for text in chinese)
