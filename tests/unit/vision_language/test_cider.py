"""CIDEr-D: values by hand, and those of pycocoevalcap 1.2, whose CIDEr needs no Java."""

import math

import pytest

from magneto.vision_language.cider import caption_words, cider

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


# Captions, and their words by PTBTokenizer's rules, one after the other: nothing of ours made them.
WORDS = {
    'A "red" circle, the left-hand side.': "a red circle the left-hand side",
    "The dog's bowl; the dogs' bowls": "the dog 's bowl the dogs bowls",
    "He\u2019s here, they\u2019re there": "he 's here they 're there",
    "It isn't; don't, can't, won't": "it is n't do n't ca n't wo n't",
    "You cannot, I'm gonna": "you can not i 'm gon na",
    "5 o'clock, ma'am, y'all": "5 o'clock ma'am y' all",
    "rock 'n' roll of the '90s": "rock 'n' roll of the '90s",
    "'Tis a kite": "'t is a kite",
    "a 5-year-old's T-shirt": "a 5-year-old 's t-shirt",
    "1,000 sheep at 10:30, 3.5 feet": "1,000 sheep at 10:30 3.5 feet",
    "the 2nd bus, No 42b": "the 2nd bus no 42b",
    "a B&W photo of salt & pepper": "a b&w photo of salt & pepper",
    "salt &amp; pepper, 50% off $5": "salt & pepper 50 % off $ 5",
    "a black/white cat and/or dog": "a black\\/white cat and\\/or dog",
    "1/2 of it, \u00bd of it": "1\\/2 of it 1\\/2 of it",
    "Mr. Smith of the U.S. team": "mr. smith of the u.s. team",
    "the end.The start": "the end.the start",
    "two men - one tall -- run \u2014 fast...": "two men one tall run fast",
    "a sign (stop) here": "a sign -lrb- stop -rrb- here",
    "Wow!! What?": "wow !! what",
    "...": "",
    "bus #7, @ home": "bus # 7 @ home",
    "a caf\u00e9": "a caf\u00e9",
}


def test_words_are_the_treebanks() -> None:
    found = {text: " ".join(caption_words(text)) for text in WORDS}
    assert found == WORDS


def test_every_image_needs_a_reference() -> None:
    with pytest.raises(ValueError, match="a reference or more"):
        cider(["a", "b"], [["a"], []])
