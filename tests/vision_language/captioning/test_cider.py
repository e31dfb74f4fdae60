"""CIDEr-D: values by hand, and those of pycocoevalcap 1.2, whose CIDEr needs no Java."""

import math

import pytest

from magneto.vision_language.captioning.cider import caption_words, cider

REFERENCES = [
    ["a red circle on the left", "there is a red circle"],
    ["a blue square at the top right", "the square is blue"],
    ["two crosses", "a cross and another cross", "crosses"],
    ["a red square below a blue circle"],
]
CAPTIONS = ["a red circle", "a blue square at the top right", "a cross", "red red red square"]
# By pycocoevalcap 1.2's CiderScorer(n=4, sigma=6.0), run on the same words.
OFFICIAL = [3.6682415686176393, 5.427236975848722, 0.9681701291099405, 0.9584474727298842]


def test_values_of_the_official_code() -> None:
    assert cider(CAPTIONS, REFERENCES) == pytest.approx(OFFICIAL, rel=1e-12)


def test_by_hand() -> None:
    """Three images whose references share no words: all n-grams are equally rare."""
    references = [["one two"], ["three four"], ["five six"]]
    # The same two words: cosines 1 for n = 1 and 2; there are no longer n-grams.
    assert cider(["one two", "", "six"], references) == pytest.approx(
        [10 * 2 / 4, 0.0, 10 * math.exp(-1 / 72) / math.sqrt(2) / 4]
    )
    # What is said twice counts once, but makes the caption longer in norm and in words.
    (found, *_) = cider(["one two one two", "", ""], references)
    expected = 10 * math.exp(-4 / 72) * (2 / math.sqrt(8 * 2) + 1 / math.sqrt(5)) / 4
    assert found == pytest.approx(expected)


def test_words_are_without_punctuation_and_case() -> None:
    assert caption_words('A "red" circle, the dog\'s; left-hand side.') == [
        "a", "red", "circle", "the", "dog's", "left", "hand", "side"]  # fmt: skip
    assert caption_words("...") == []


def test_every_image_needs_a_reference() -> None:
    with pytest.raises(ValueError, match="a reference or more"):
        cider(["a", "b"], [["a"], []])
