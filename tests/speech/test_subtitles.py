"""Subtitles as players read them."""

from magneto.speech.subtitles import as_srt, cut_lines
from magneto.speech.words import Word

WORDS = [Word("fish", 0.04, 0.52), Word("&", 0.6, 0.68), Word("chips", 3661.25, 3661.9996)]


def test_srt() -> None:
    assert as_srt(WORDS) == (
        "1\n00:00:00,040 --> 00:00:00,680\nfish &\n\n2\n01:01:01,250 --> 01:01:02,000\nchips\n"
    )
    assert as_srt([]) == ""


def test_lines_are_short() -> None:
    long = [Word("abcdefghi", n * 0.1, n * 0.1 + 0.05) for n in range(20)]
    assert [len(line) for line in cut_lines(long)] == [8, 8, 4]
    slow = [Word("a", n * 0.9, n * 0.9 + 0.5) for n in range(10)]
    assert all(line[-1].end - line[0].start <= 6.0 for line in cut_lines(slow))
    assert [word for line in cut_lines(slow) for word in line] == slow
