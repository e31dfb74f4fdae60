"""A built-in set of labelled sentences: are the words in their original order?

Real sentences of the Python library's documentation; in half of them the words are shuffled. Which
half, and how, is a function of the sentence. Words alone can't tell: a bag of them is the same
either way, so what is beyond chance is knowledge of order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from magneto.data import builtin
from magneto.data.splits import held_out

# Shorter ones say too little, longer ones too much.
LEAST, MOST = 6, 20
SHUFFLED, AS_WRITTEN = "shuffled", "as-written"


@dataclass(frozen=True)
class Sentence:
    """A sentence and whether its words are in order."""

    text: str
    label: str


def word_order() -> list[Sentence]:
    """Return the sentences, each once; case and stops are taken away, which would tell."""
    found: dict[str, None] = {}
    for document in builtin.docstrings():
        for sentence in re.split(r"(?<=[.!?;:])\s+|\n+", document):
            words = re.findall(r"[a-z0-9_'()-]+", sentence.lower())
            if LEAST <= len(words) <= MOST and len(set(words)) > LEAST // 2:
                found[" ".join(words)] = None
    return [_labelled(sentence) for sentence in found]


def _labelled(sentence: str) -> Sentence:
    if held_out(sentence, 0.5):
        return Sentence(sentence, AS_WRITTEN)
    words = sentence.split()
    random = np.random.default_rng(list(sentence.encode()))
    while (shuffled := " ".join(random.permutation(words))) == sentence:
        pass
    return Sentence(shuffled, SHUFFLED)
