"""Shuffled sentences hold the same words: nothing but their order tells."""

from collections import Counter

import pytest

from magneto.language import labelled_texts
from magneto.language.labelled_texts import AS_WRITTEN, LEAST, MOST, word_order

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "sleeps",
]


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch):
    """The set, made of four hundred known sentences."""
    lines = [" ".join([*WORDS[: 6 + i % 7], f"n{i}"]) for i in range(400)]
    text = ". ".join([*lines, "Too short", "long " * (MOST + 1)])
    monkeypatch.setattr(labelled_texts, "docstrings", lambda: [text, text])
    return lines, word_order()


def test_every_sentence_is_there_once_with_its_words(sentences) -> None:
    lines, made = sentences
    assert len(made) == len(lines)
    bags = [Counter(line.split()) for line in lines]
    assert [Counter(sentence.text.split()) for sentence in made] == bags
    assert all(LEAST <= len(sentence.text.split()) <= MOST for sentence in made)


def test_the_label_says_whether_the_words_were_moved(sentences) -> None:
    lines, made = sentences
    for line, sentence in zip(lines, made, strict=True):
        assert (sentence.text == line) == (sentence.label == AS_WRITTEN)
    written = sum(sentence.label == AS_WRITTEN for sentence in made)
    assert 150 < written < 250
    assert made == word_order(), "which half, and how, is a function of the sentence"
