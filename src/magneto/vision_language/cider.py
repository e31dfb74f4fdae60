"""CIDEr-D (arXiv 1411.5726, section 4.1): how much captions agree with what people wrote.

Every caption is a vector of its n-grams' weights for n = 1 to 4: how often an n-gram occurs, times
how rare it is among the references of all images. A caption's score is its mean similarity to the
references of its image, over n and references, times 10: a cosine, in which an n-gram counts at
most as often as the reference has it, times a penalty on a difference in length. So scores depend
on the whole set.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

LONGEST = 4
# Of the penalty on a difference in length, in words.
SIGMA = 6.0
SCALE = 10.0

# What the official code takes for a word: Stanford's PTBTokenizer (Penn Treebank's rules), then
# `PUNCTUATION` is left out. Each line is tried in turn where the word before ended.
APOSTROPHE = r"['\u2019\u00b4]"
LETTER, ALPHANUMERIC = r"[^\W\d_]", r"[^\W_]"
FIGURE = r"(?:\d*(?:[.,]\d+)+|\d+(?:[.:,]\d+)*)"
PART = rf"(?:{FIGURE}(?!{ALPHANUMERIC})|{ALPHANUMERIC}+)"
ENDING = rf"{APOSTROPHE}(?:[smd]|re|ve|ll)(?!{LETTER})"
ABBREVIATION = (
    "mrs?|ms|drs?|profs?|gen|col|lt|sgt|capt|rev|gov|sen|rep|pres|st|ste|mt|ft|ave|blvd|rd|dept|jr|"
    "sr|bros|inc|cos?|corp|ltd|vs|etc|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tues?|wed|"
    "thurs?|thu|fri"
)
WORD = re.compile(
    "|".join([
        r"(?:\d{1,4}[- \u00a0])?\d{1,4}/\d{1,4}(?![\w/])",  # 5 1/2
        rf"{LETTER}(?:\.{LETTER})+\.(?!\w)",  # u.s.
        rf"(?:{ABBREVIATION})\.(?!\w)",
        rf"{LETTER}*[^\W\d_n](?=n{APOSTROPHE}t(?!{LETTER}))",  # do, of don't
        rf"n{APOSTROPHE}t(?!{LETTER})",
        rf"{ALPHANUMERIC}+(?={ENDING})",  # dog, of dog's
        ENDING,
        rf"{APOSTROPHE}t(?=(?:is|was)(?!\w))",
        rf"{APOSTROPHE}(?:n{APOSTROPHE}?|em|till?|cause|[2-9]0s|\d\d)(?!\w)",  # rock 'n' roll
        rf"y{APOSTROPHE}(?={LETTER})",  # y', of y'all
        rf"(?:{LETTER}|{LETTER}*[aeiouy]){APOSTROPHE}{LETTER}{{2,}}",  # o'clock, ma'am
        rf"{LETTER}+(?:[+&]{LETTER}+)+",  # b&w
        rf"{ALPHANUMERIC}+(?:-{LETTER}+){{0,2}}(?:/{ALPHANUMERIC}+(?:-{LETTER}+){{0,2}}){{1,2}}",
        rf"{LETTER}{ALPHANUMERIC}*(?:[.!?]{LETTER}{ALPHANUMERIC}*)+",  # side.the
        rf"{PART}(?:[-_]{PART})+",  # black-and-white, 5-year-old
        rf"[-+]?{FIGURE}(?!{ALPHANUMERIC})",  # 1,000, 10:30, -5
        rf"{ALPHANUMERIC}+",
        rf"[#@]{LETTER}\w*",
        r"[?!]+|\.\.+|-+|#+|@+|_+|\S",
    ])
)  # fmt: skip
# Cut in two after their third letter.
TWO_WORDS = ("cannot", "gonna", "gotta", "lemme", "gimme", "wanna")
SYMBOLS = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    "\u00a2": "cents", "\u00a3": "#", "\u20ac": "$", "\u00bc": "1\\/4", "\u00bd": "1\\/2",
    "\u00be": "3\\/4",
}  # fmt: skip
# The official list names brackets in capitals, which words in lower case never are: they stay.
PUNCTUATION = re.compile(
    r"[.,:;?!'\"`\u00b4\u2018-\u201f\u2039\u203a\u00ab\u00bb\u2013-\u2015\u2026]|\.{2,}|-{1,4}"
)

Ngram = tuple[str, ...]
Vector = dict[Ngram, float]


def caption_words(text: str) -> list[str]:
    """Return the words of a caption in lower case, without punctuation.

    By the rules of the tokenizer in Java that the official code asks: "don't" is two words,
    "left-hand", "1,000" and "b&w" are one, "&" and "%" stay. Left out are its lists of British
    spellings, addresses of the web and mail, telephone numbers, markup and faces such as ":)".
    """
    words: list[str] = []
    for word in WORD.findall(text.lower().replace("&amp;", "&")):
        if not PUNCTUATION.fullmatch(word):
            words += [word[:3], word[3:]] if word in TWO_WORDS else [word]
    return [SYMBOLS.get(word, normal(word)) for word in words]


def normal(word: str) -> str:
    """Return a word as the Treebank writes it: other apostrophes straight, "/" and "*" escaped."""
    word = word.replace("\u2019", "'").replace("\u00b4", "'").replace("\u00a0", " ")
    return word.replace("/", "\\/").replace("*", "\\*")


def ngrams(words: Sequence[str]) -> Counter[Ngram]:
    """Count the n-grams of up to `LONGEST` words."""
    return Counter(
        tuple(words[start : start + size])
        for size in range(1, LONGEST + 1)
        for start in range(len(words) - size + 1)
    )


def cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return the score of each caption.

    Args:
        captions: One of each image.
        references: What people wrote of each image: one or more.

    Raises:
        ValueError: If an image has no references.
    """
    if not all(references):
        raise ValueError("CIDEr needs a reference or more of every image")
    known = [[ngrams(caption_words(text)) for text in texts] for texts in references]
    images_with: Counter[Ngram] = Counter(ngram for texts in known for ngram in set().union(*texts))
    rarity = math.log(len(references))

    def weighed(counts: Counter[Ngram]) -> list[Vector]:
        """Return a vector for each n."""
        made: list[Vector] = [{} for _ in range(LONGEST)]
        for ngram, count in counts.items():
            rare = rarity - math.log(max(1.0, images_with[ngram]))
            made[len(ngram) - 1][ngram] = count * rare
        return made

    scores = []
    for caption, texts in zip(captions, known, strict=True):
        counts = ngrams(caption_words(caption))
        mine = weighed(counts)
        found = [similarity(mine, weighed(text), two_grams(counts) - two_grams(text))
                 for text in texts]  # fmt: skip
        scores.append(SCALE * sum(found) / len(found))
    return scores


def two_grams(counts: Counter[Ngram]) -> int:
    """Return how many pairs of neighbours a caption has: its length in the official code."""
    return sum(count for ngram, count in counts.items() if len(ngram) == 2)


def similarity(mine: Sequence[Vector], other: Sequence[Vector], longer: int) -> float:
    """Return the mean over n of the similarity to a reference.

    Args:
        mine: A vector for each n, of the caption.
        other: Of the reference.
        longer: By how many words the caption is longer.
    """
    total = 0.0
    for left, right in zip(mine, other, strict=True):
        product = sum(min(w, right[n]) * right[n] for n, w in left.items() if n in right)
        length = norm(left) * norm(right)
        total += product / length if length else product
    return total * math.exp(-(longer**2) / (2 * SIGMA**2)) / LONGEST


def norm(vector: Vector) -> float:
    """Return the length of a vector."""
    return math.sqrt(sum(weight**2 for weight in vector.values()))
