"""Scores of answers and captions beside what others publish.

VQA's rules of evaluation are written once more, letter by letter: nothing here is shared with the
package, no regular expressions, no table that is derived, one annotator left out at a time. CIDEr's
values are those of pycocoevalcap 1.2, whose CIDEr needs no Java.
"""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from magneto.vision_language.answers import CONTRACTIONS, When, normalise_answer, question_accuracy
from magneto.vision_language.captioning import caption_words, cider

MARKS = [";", "/", "[", "]", '"', "{", "}", "(", ")", "=", "+", "\\", "_", "-", ">", "<", "@", "`",
         ",", "?", "!"]  # fmt: skip
DIGITS = {"none": 0, "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6,
          "seven": 7, "eight": 8, "nine": 9, "ten": 10}  # fmt: skip
# Misspelt and mended, as they are published (those with a capital never meet a small letter).
MENDED = """
aint ain't|arent aren't|cant can't|couldve could've|couldnt couldn't|couldn'tve couldn't've
couldnt've couldn't've|didnt didn't|doesnt doesn't|dont don't|hadnt hadn't|hadnt've hadn't've
hadn'tve hadn't've|hasnt hasn't|havent haven't|hed he'd|hed've he'd've|he'dve he'd've|hes he's
howd how'd|howll how'll|hows how's|Id've I'd've|I'dve I'd've|Im I'm|Ive I've|isnt isn't|itd it'd
itd've it'd've|it'dve it'd've|itll it'll|let's let's|maam ma'am|mightnt mightn't
mightnt've mightn't've|mightn'tve mightn't've|mightve might've|mustnt mustn't|mustve must've
neednt needn't|notve not've|oclock o'clock|oughtnt oughtn't|ow's'at 'ow's'at|'ows'at 'ow's'at
'ow'sat 'ow's'at|shant shan't|shed've she'd've|she'dve she'd've|she's she's|shouldve should've
shouldnt shouldn't|shouldnt've shouldn't've|shouldn'tve shouldn't've|somebody'd somebodyd
somebodyd've somebody'd've|somebody'dve somebody'd've|somebodyll somebody'll|somebodys somebody's
someoned someone'd|someoned've someone'd've|someone'dve someone'd've|someonell someone'll
someones someone's|somethingd something'd|somethingd've something'd've|something'dve something'd've
somethingll something'll|thats that's|thered there'd|thered've there'd've|there'dve there'd've
therere there're|theres there's|theyd they'd|theyd've they'd've|they'dve they'd've|theyll they'll
theyre they're|theyve they've|twas 'twas|wasnt wasn't|wed've we'd've|we'dve we'd've|weve we've
werent weren't|whatll what'll|whatre what're|whats what's|whatve what've|whens when's|whered where'd
wheres where's|whereve where've|whod who'd|whod've who'd've|who'dve who'd've|wholl who'll|whos who's
whove who've|whyll why'll|whyre why're|whys why's|wont won't|wouldve would've|wouldnt wouldn't
wouldnt've wouldn't've|wouldn'tve wouldn't've|yall y'all|yall'll y'all'll|y'allll y'all'll
yall'd've y'all'd've|y'alld've y'all'd've|y'all'dve y'all'd've|youd you'd|youd've you'd've
you'dve you'd've|youll you'll|youre you're|youve you've
"""
MENDED_WORDS = dict(pair.split(" ") for pair in MENDED.strip().replace("\n", "|").split("|"))


def without_punctuation(text: str) -> str:
    """Take marks out: with a gap, or without one by two conditions on the whole text."""
    comma = any(
        text[i] == "," and text[i - 1].isdigit() and text[i + 1].isdigit()
        for i in range(1, len(text) - 1)
    )
    closed = {m for m in MARKS if m + " " in text or " " + m in text}
    letters = [
        letter if letter not in MARKS else "" if comma or letter in closed else " "
        for letter in text
    ]
    spaced = "".join(letters)
    left, found = 32, []
    for place, letter in enumerate(spaced):
        digit_follows = place + 1 < len(spaced) and spaced[place + 1].isdigit()
        if letter == "." and not digit_follows and left > 0:
            left -= 1
        else:
            found.append(letter)
    return "".join(found)


def small_words(text: str) -> str:
    """Lower the letters, then look at each word by itself."""
    kept = []
    for written in text.lower().split():
        word = str(DIGITS[written]) if written in DIGITS else written
        if word in ("a", "an", "the"):
            continue
        kept.append(MENDED_WORDS.get(word, word))
    return " ".join(kept)


@cache
def normalised(text: str) -> str:
    return small_words(without_punctuation(text))


def published_accuracy(answer: str, annotators: Sequence[str], always: bool = False) -> Fraction:
    """Average over the annotators, one left out at a time."""

    def blanks(text: str) -> str:
        return "".join(" " if letter in "\n\t" else letter for letter in text).strip()

    prediction, others = blanks(answer), [blanks(one) for one in annotators]
    if always or any(one != others[0] for one in others):
        prediction, others = normalised(prediction), [normalised(one) for one in others]
    total = Fraction(0)
    for left_out in range(len(others)):
        agree = sum(one == prediction for i, one in enumerate(others) if i != left_out)
        total += min(Fraction(1), Fraction(agree, 3))
    return total / len(others)


# Pairs of what is said and what annotators wrote, a rule each; some agree, some do not.
PAIRS = [
    # articles
    ("a dog", "dog"), ("the dog", "dog"), ("an apple", "apple"), ("The", "the"), ("a", "an"),
    ("dog a", "dog"), ("than", "the an"), ("a the an", ""), ("theatre", "atre"),
    # number words, and digits that are none
    ("none", "0"), ("none", "none"), ("None", "none"), ("zero", "0"), ("one", "1"), ("two", "2"),
    ("three", "3"), ("four", "4"), ("five", "5"), ("six", "6"), ("seven", "7"), ("eight", "8"),
    ("nine", "9"), ("ten", "10"), ("eleven", "11"), ("one on left", "1 on left"), ("someone", "1"),
    ("nonexistent", "0"), ("twenty two", "twenty 2"), ("01", "1"), ("0", "none of them"),
    # letters
    ("Yes", "yes"), ("YES", "Yes"), ("NO", "no"), ("İ", "i"), ("straße", "STRASSE"),
    # contractions
    ("dont", "don't"), ("don't", "dont"), ("cant", "can't"), ("couldntve", "couldn't've"),
    ("couldnt've", "couldn't've"), ("couldn'tve", "couldn't've"), ("Im", "i'm"), ("Ive", "i've"),
    ("Id've", "i'd've"), ("im", "i'm"), ("somebody'd", "somebodyd"), ("somebodyd", "somebody'd"),
    ("somebodyd've", "somebody'd've"), ("ow's'at", "'ow's'at"), ("'ow'sat", "'ow's'at"),
    ("let's", "lets"), ("lets", "let's"), ("shes", "she's"), ("oclock", "o'clock"),
    ("5 oclock", "5 o'clock"), ("twas", "'twas"), ("yalldve", "y'all'd've"),
    ("yall'd've", "y'all'd've"), ("y'alld've", "y'all'd've"), ("Dont", "don't"),
    ("dont dont", "don't don't"), ("its", "it's"), ("maam", "ma'am"), ("weve", "we've"),
    # punctuation: a gap, or none beside a space
    ("t-shirt", "t shirt"), ("t-shirt", "tshirt"), ("t -shirt", "t shirt"),
    ("black-and white", "black and white"), ("black- and-white", "black andwhite"),
    ("red/white", "red white"), ("red / white", "red white"), ("red/ white", "redwhite"),
    ("yes!", "yes"), ("yes?", "yes"), ("yes;", "yes"), ("(yes)", "yes"), ("[yes]", "yes"),
    ("{yes}", "yes"), ('"yes"', "yes"), ("`yes`", "yes"), ("<yes>", "yes"),
    ("yes@home", "yes home"),
    ("a=b", "b"), ("1+1", "1 1"), ("1 + 1", "1 1"), ("back\\slash", "back slash"),
    ("snake_case", "snake case"), ("a, b", "b"), ("a,b", "b"), ("red,white", "red white"),
    ("red, white", "red white"), ("one,two", "1 2"), ("-", ""), ("?!", ""), ("yes ,", "yes"),
    ("it's", "its"), ("don't-know", "don't know"), ("10:30", "1030"), ("10:30", "10:30"),
    ("50%", "50"), ("#1", "1"), ("$5", "5"), ("&", "and"), ("*", ""),
    # commas in numbers close every gap
    ("1,000", "1000"), ("1,000", "1 000"), ("1,000 t-shirts", "1000 tshirts"),
    ("1,000 t-shirts", "1000 t shirts"), ("1, 000", "1 000"), ("1 ,000", "1 000"),
    ("1,a", "1"), ("10,000,000", "10000000"), ("3,4/5", "345"), ("a,1", "1"), ("٣,٤", "٣٤"),
    # full stops
    ("1.5", "1.5"), ("1.5", "15"), ("1.", "1"), (".5", ".5"), (".5", "5"), ("u.s.a.", "usa"),
    ("u.s.a", "u s a"), ("no.", "no"), ("no.1", "no1"), ("no.1", "no.1"), ("...", ""),
    ("st. james", "st james"), ("www.site.com", "wwwsitecom"), ("1.a", "1a"), ("a.1", ".1"),
    ("." * 32 + "yes", "yes"), ("." * 33 + "yes", "yes"), ("." * 33 + "yes", ".yes"),
    # blanks
    (" yes", "yes"), ("yes ", "yes"), ("yes\n", "yes"), ("\tyes", "yes"),
    ("dark\nblue", "dark blue"),
    ("dark\tblue", "dark blue"), ("dark  blue", "dark blue"), ("", ""), (" ", ""),
    ("yes, ", "yes"), ("a-b- ", "b"), ("a-b- ", "ab"), ("x- y-z ", "x yz"),
]  # fmt: skip


def test_every_rule_as_published() -> None:
    """2 x 7 x 2 x more than 140 cases: how many annotators wrote it, and who wrote which."""
    assert len(PAIRS) >= 140
    whens: tuple[When, When] = ("where_annotators_disagree", "always")
    for when, count, (prediction, written) in itertools.product(
        whens, (0, 1, 2, 3, 4, 9, 10), PAIRS
    ):
        for answer, known in ((prediction, written), (written, prediction)):
            annotators = [known] * count + ["something else"] * (10 - count)
            expected = published_accuracy(answer, annotators, when == "always")
            found = question_accuracy(answer, annotators, when)
            assert found == pytest.approx(float(expected), abs=1e-12), (answer, annotators)


def test_annotators_who_write_differently() -> None:
    """Spellings mixed among the ten: normalised, they agree."""
    for (one, other), count in itertools.product(PAIRS, (1, 5, 9)):
        annotators = [one] * count + [other] * (10 - count)
        for answer in (one, other, one.upper(), "none"):
            expected = published_accuracy(answer, annotators)
            assert question_accuracy(answer, annotators) == pytest.approx(float(expected)), (
                answer, annotators,
            )  # fmt: skip


def test_the_contractions_are_those_published() -> None:
    """But for those that change nothing, and those with a capital, which no small letter meets."""
    published = {
        key: value for key, value in MENDED_WORDS.items() if key != value and key == key.lower()
    }
    assert published == CONTRACTIONS
    assert all(normalise_answer(key) == value for key, value in published.items())


def test_random_answers() -> None:
    """Of letters that the rules speak of, 5000 answers as published."""
    letters = [*MARKS, *"aA1 .,'", " ", "the", " none ", "dont", "1,0", ". ", ".5"]
    random = np.random.default_rng(0)
    for _ in range(5000):
        answer = "".join(letters[i] for i in random.integers(len(letters), size=7))
        assert normalise_answer(answer) == normalised(answer), answer


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
