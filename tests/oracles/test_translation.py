"""Scores by sacreBLEU, and the averages of the paper's table."""

import math

import pytest

pytest.importorskip("sacrebleu")

from magneto.translation.task import (
    average_directions,
    score_translations,
)


def test_bleu_is_the_textbook_value() -> None:
    """13a splits the full stop off; the lengths are the same, so there is no brevity penalty."""
    found = score_translations(["the cat sat on mats."], ["the cat sat on a."])
    precisions = [5 / 6, 3 / 5, 2 / 4, 1 / 3]
    expected = 100 * math.exp(sum(map(math.log, precisions)) / 4)
    assert found.bleu == pytest.approx(expected)
    assert found.sentences == 1 and 0 < found.chrf < 100


def test_case_counts_and_equal_text_is_100() -> None:
    text = "Ein Hund rennt über die Wiese ."
    same = score_translations([text] * 2, [text] * 2)
    assert same.bleu == pytest.approx(100) and same.chrf == pytest.approx(100)
    assert score_translations(["ein hund Rennt über die Wiese ."], [text]).bleu < 60


def test_averages_weigh_directions_alike() -> None:
    values = {("en", "de"): 30.0, ("en", "fr"): 40.0, ("de", "en"): 20.0, ("de", "fr"): 99.0}
    found = average_directions(values, "en")
    assert found == {"out": 35.0, "into": 20.0, "both": 27.5}
    alone = average_directions({("en", "de"): 30.0}, "en")
    assert alone["out"] == 30.0 and math.isnan(alone["into"]) and math.isnan(alone["both"])


def test_what_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="2 translations and 1 references"):
        score_translations(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="no translations to score"):
        score_translations([], [])
