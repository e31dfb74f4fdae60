"""Words with times as subtitles (.srt)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from magneto.speech.words import Word

# Of one subtitle: two lines of 42 characters, and what a reader can follow.
MOST_CHARACTERS = 84
MOST_SECONDS = 6.0
# A pause so long begins a new one.
PAUSE = 1.0


def cut_lines(words: Iterable[Word]) -> Iterator[list[Word]]:
    """Cut words into lines that can be read at once."""
    line: list[Word] = []
    for word in words:
        text = sum(len(each.text) + 1 for each in line) + len(word.text)
        if line and (
            text > MOST_CHARACTERS
            or word.end - line[0].start > MOST_SECONDS
            or word.start - line[-1].end > PAUSE
        ):
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def as_srt(words: Sequence[Word]) -> str:
    """Return SubRip subtitles."""
    found = []
    for number, line in enumerate(cut_lines(words), 1):
        text = " ".join(word.text for word in line)
        found.append(f"{number}\n{_clock(line[0].start)} --> {_clock(line[-1].end)}\n{text}\n")
    return "\n".join(found)


def _clock(seconds: float) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{whole:02d},{thousandths:03d}"
