"""How VQA's official evaluation normalises an answer before it compares it with another.

Punctuation goes, letters become small, number words become digits, articles go, and contractions
get their apostrophes. The rules are those of the evaluation code that VQA's authors publish
(GT-Vision-Lab/VQA, commit a013f00), with what is odd in them, so that scores are comparable:

- A mark of punctuation becomes a space, or nothing if it stands beside a space anywhere in the
  answer; all marks become nothing if the answer has a comma between two digits.
- A full stop goes unless a digit follows it ("1.5" stays, "1." becomes "1"); of more than 32 of
  them, the first 32.
- "none" is a number word: it becomes "0".
"""

from __future__ import annotations

import re
from functools import lru_cache

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
COMMA_IN_NUMBER = re.compile(r"\d,\d")
FULL_STOP = re.compile(r"\.(?!\d)")
# The official code passes a flag, whose value is 32, where the number of replacements belongs.
MOST_FULL_STOPS = 32
NUMBER_WORDS = {
    "none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5",
    "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10",
}  # fmt: skip
ARTICLES = {"a", "an", "the"}
CONTRACTED = re.findall(
    r"\S+",
    """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
    haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
    might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
    shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
    someone's something'd something'd've something'll that's there'd there'd've there're there's
    they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're
    what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're
    why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're
    you've
""",
)
"""Words whose spelling with one apostrophe left out is mended."""


def without_one_apostrophe(word: str) -> list[str]:
    """Return a word's spellings with one of its apostrophes left out."""
    return [word[:i] + word[i + 1 :] for i, letter in enumerate(word) if letter == "'"]


CONTRACTIONS = {
    **{spelt: word for word in CONTRACTED for spelt in without_one_apostrophe(word)},
    "somebody'd": "somebodyd",  # the official table has this one the wrong way round
}


@lru_cache(maxsize=1 << 18)
def normalise_answer(answer: str) -> str:
    """Return an answer as the official evaluation compares it."""
    return normalise_words(strip_punctuation(answer))


def strip_punctuation(answer: str) -> str:
    """Take out punctuation; see the rules above."""
    joined = COMMA_IN_NUMBER.search(answer) is not None
    found = answer
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in answer or f" {mark}" in answer
        found = found.replace(mark, "" if joined or beside_space else " ")
    return FULL_STOP.sub("", found, count=MOST_FULL_STOPS)


def normalise_words(answer: str) -> str:
    """Make letters small and number words digits, leave articles out, mend contractions."""
    words = [NUMBER_WORDS.get(word, word) for word in answer.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)
