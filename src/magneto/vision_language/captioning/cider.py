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
WORD = re.compile(r"\w+(?:['\u2019]\w+)?|[^\w\s]")
NOT_WORDS = re.compile(r"^[^\w]+$")

Ngram = tuple[str, ...]
Vector = dict[Ngram, float]


def caption_words(text: str) -> list[str]:
    """Return the words of a caption in lower case, without punctuation.

    The official code asks a tokenizer in Java, by Penn Treebank's rules, which cuts "dog's" in two
    words; here it is one.
    """
    return [word for word in WORD.findall(text.lower()) if not NOT_WORDS.match(word)]


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
