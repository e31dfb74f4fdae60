"""Normalised answers: by hand, and letter by letter as the rules are published."""

import numpy as np
import pytest

from magneto.vision_language.question_answering.normalisation import (
    CONTRACTIONS,
    normalise_answer,
    normalise_words,
    strip_punctuation,
)
from tests.vision_language.question_answering import official_rules


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The Red-White one.", "red white 1"),
        ("1,000 t-shirts", "1000 tshirts"),
        ("black- and-white", "black andwhite"),
        ("dont know", "don't know"),
        ("somebody'd", "somebodyd"),
        ("1.5 miles.", "1.5 miles"),
        ("None", "0"),
        ("a", ""),
    ],
)
def test_by_hand(answer: str, expected: str) -> None:
    assert normalise_answer(answer) == expected


def test_full_stops_beyond_the_32nd_stay() -> None:
    assert strip_punctuation("." * 40) == "." * 8


def test_the_contractions_are_those_published() -> None:
    """But for those that change nothing, and those with a capital, which no small letter meets."""
    published = {
        key: value
        for key, value in official_rules.CONTRACTIONS.items()
        if key != value and key == key.lower()
    }
    assert published == CONTRACTIONS
    assert all(normalise_words(key) == value for key, value in published.items())


def test_random_answers() -> None:
    """Of letters that the rules speak of, 5000 answers as published."""
    letters = [*official_rules.MARKS, *"aA1 .,'", " ", "the", " none ", "dont", "1,0", ". ", ".5"]
    random = np.random.default_rng(0)
    for _ in range(5000):
        answer = "".join(letters[i] for i in random.integers(len(letters), size=7))
        assert normalise_answer(answer) == official_rules.normalised(answer), answer
