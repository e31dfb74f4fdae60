"""The official accuracy: hand-made cases of every rule, against the rules written once more."""

import itertools
import random

import numpy as np
import pytest

from magneto.vision_language.answer_accuracy import (
    CONTRACTIONS,
    When,
    answer_scores,
    answerable,
    leave_one_out,
    normalise_answer,
    normalise_words,
    question_accuracy,
    strip_punctuation,
    summary,
)
from tests.unit.vision_language import official_rules

NINE = ["something else"] * 9
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


@pytest.mark.parametrize("when", ["where_annotators_disagree", "always"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9, 10])
def test_every_rule_as_published(when: str, count: int) -> None:
    """2 x 7 x 2 x more than 140 cases: how many annotators wrote it, and who wrote which."""
    assert len(PAIRS) >= 140
    for said, written in PAIRS:
        for answer, known in ((said, written), (written, said)):
            annotators = [known] * count + NINE[:1] * (10 - count)
            expected = official_rules.accuracy(answer, annotators, when == "always")
            found = question_accuracy(answer, annotators, when)  # type: ignore[arg-type]
            assert found == pytest.approx(float(expected), abs=1e-12), (answer, annotators)


def test_annotators_who_write_differently() -> None:
    """Spellings mixed among the ten: normalised, they agree."""
    for (one, other), count in itertools.product(PAIRS, (1, 5, 9)):
        annotators = [one] * count + [other] * (10 - count)
        for answer in (one, other, one.upper(), "none"):
            expected = official_rules.accuracy(answer, annotators)
            assert question_accuracy(answer, annotators) == pytest.approx(float(expected)), (
                answer, annotators,
            )  # fmt: skip


def test_by_hand() -> None:
    """Numbers that no code worked out."""
    assert [round(leave_one_out(n, 10), 10) for n in range(6)] == [0, 0.3, 0.6, 0.9, 1, 1]
    assert leave_one_out(0, 0) == 0 and leave_one_out(1, 1) == 0
    ten = ["yes"] * 8 + ["no"] * 2
    assert question_accuracy("yes", ten) == 1
    assert question_accuracy("no", ten) == pytest.approx(0.6)
    assert question_accuracy("maybe", ten) == 0


def test_nothing_is_normalised_where_all_agree() -> None:
    """On purpose: what is written on a sign has to be spelt as it is there."""
    assert question_accuracy("Yes", ["yes"] * 10) == 0
    assert question_accuracy("Yes", ["yes"] * 10, "always") == 1
    assert question_accuracy("the mall", ["the mall"] * 10) == 1
    assert question_accuracy("the mall.", ["the mall"] * 9 + ["mall"]) == 1
    # Blanks are stripped before the annotators are compared.
    assert question_accuracy("Yes", ["yes"] * 9 + ["yes "]) == 0


def test_none_is_zero_only_where_they_disagree() -> None:
    assert question_accuracy("none", ["none"] * 10) == 1
    assert question_accuracy("0", ["none"] * 10) == 0
    assert question_accuracy("0", ["none"] * 9 + ["0"]) == 1
    assert question_accuracy("none", ["0"] * 5 + ["zero"] * 5) == 1


def test_whether_any_known_answer_is_right() -> None:
    """As trying them all one by one says, and raw spelling does not keep an answer from it."""
    known, draw = ["2", "dog", "two dogs", "a cat", "t-shirt"], random.Random(0)
    said = ["two", "2", "couple", "Dog", "the dog", "dog", "2 dogs", "cat", "T-Shirt", "x", "dog\n"]
    asked = [["two"] * 6 + ["couple"] * 4, ["two"] * 10, ["2"] * 10, ["2"], [], ["x", "2"]]
    asked += [draw.choices(said, k=draw.choice([1, 2, 3, 10])) for _ in range(2000)]
    whens: tuple[When, When] = ("where_annotators_disagree", "always")
    for when in whens:
        tried = [any(question_accuracy(one, said, when) > 0 for one in known) for said in asked]
        assert list(answerable(asked, known, when)) == tried
        assert tried[:6] == [True, when == "always", True, False, False, True]


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
def test_normalised_by_hand(answer: str, expected: str) -> None:
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


ANSWERS = [("yes",) * 10, ("two",) * 10, ("dog",) * 2 + ("The cat",) * 8]
TYPES = ["yes/no", "number", "other"]


def test_accuracy_by_type() -> None:
    given = ["yes", "2", "dog"]
    found = answer_scores(ANSWERS, TYPES, given, "where_annotators_disagree")
    assert found == pytest.approx(
        {"accuracy": 1.6 / 3, "accuracy_number": 0, "accuracy_other": 0.6, "accuracy_yes_no": 1}
    )
    assert answer_scores(ANSWERS, TYPES, given, "always")["accuracy_number"] == 1
    none = answer_scores(ANSWERS, TYPES, [None, None, "cat"], "always")
    assert none["accuracy"] == pytest.approx(1 / 3)


def test_summary() -> None:
    sums = {"loss": 6.0, "soft_score": 1.5, "unknown": 1, "broken": 2, "count": 3}
    found = summary(sums, ANSWERS, TYPES, ["yes", None, None], "always")
    assert found["loss"] == 2 and found["soft_score"] == 0.5 and found["broken"] == 2
    assert found["unknown"] == pytest.approx(1 / 3) and found["accuracy"] == pytest.approx(1 / 3)
    unanswered = summary({**sums, "count": 1}, [()], [""], ["x"], "always")
    assert unanswered == {"questions": 1, "broken": 2}
