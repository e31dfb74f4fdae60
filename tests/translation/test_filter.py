"""Directions come from the languages that are asked for; a wrong one is an error."""

import re

import pytest

from magneto.translation.config import ParallelDataConfig
from magneto.translation.filter import wanted_directions

THERE = {("de", "en"), ("de", "fr"), ("en", "fr")}


def directions(**changes) -> list[tuple[str, str]]:
    config = ParallelDataConfig(source="text", **changes)
    there = {pair for pair in THERE if not config.languages or {*pair} <= {*config.languages}}
    return wanted_directions(config, there, ["de", "en", "fr"])


def test_all_with_the_centre_or_those_given() -> None:
    assert directions() == [("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en")]
    assert directions(languages=("fr", "en")) == [("en", "fr"), ("fr", "en")]
    assert directions(directions=("de-fr",)) == [("de", "fr")]
    # The languages a model knows may be more than there are, where directions are given.
    assert directions(directions=("de-fr",), languages=("de", "fr", "xx")) == [("de", "fr")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"languages": ("en", "de", "frr")},
            "text has no text in frr (data.languages) with en; did you mean fr? (it has de, en, fr",
        ),
        ({"languages": ("en", "frr")}, "no text in frr (data.languages) with en; did you mean fr?"),
        ({"languages": ("de", "fr")}, "languages lack en (the pivot language)"),
        ({"languages": ("de", "fr"), "directions": ("de-en",)}, "lack en (a direction's)"),
        (
            {"pivot_language": "eng"},
            "text has no text with eng (data.pivot_language): it has de, en, fr",
        ),
        ({"directions": ("en-es",)}, "text has no text for en-es: it has de, en, fr"),
    ],
)
def test_a_language_that_is_not_there_is_an_error(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        directions(**changes)
    assert "\n" not in str(caught.value)


def test_text_that_is_only_a_test_set_is_none_to_train_on() -> None:
    config = ParallelDataConfig(source="text", languages=("en", "de"))
    with pytest.raises(ValueError, match=r"text has no text in de .* with en to train on$"):
        wanted_directions(config, set(), ["de", "en"])


def test_two_languages_without_the_pivot_are_translated_both_ways() -> None:
    both = wanted_directions(ParallelDataConfig(), {("src", "tgt")}, ["src", "tgt"])
    assert both == [("src", "tgt"), ("tgt", "src")]
    three = {("a", "b"), ("a", "c")}
    with pytest.raises(ValueError, match=r"it has a, b, c; give --data.pivot_language a, or"):
        wanted_directions(ParallelDataConfig(), three, ["a", "b", "c"])
    others = ParallelDataConfig(languages=("de", "en"))
    with pytest.raises(ValueError, match=r"it has src, tgt; .* give --data.languages null"):
        wanted_directions(others, set(), ["src", "tgt"])
