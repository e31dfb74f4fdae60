"""Headers are read once; a recording that has changed is read anew."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from magneto.progress import SILENT
from magneto.speech.audio import MISSING, AudioFile
from magneto.speech.headers import measure
from magneto.speech.utterances import Row
from tests.speech.wavs import write

pytest.importorskip("soundfile", reason="soundfile is not installed")


class Seen:
    """A `Progress` that remembers."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def update(self, what: str, done: int, total: int | None) -> None:
        self.done.append(done)

    def say(self, line: str) -> None: ...


def test_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav")
    rows = [Row(str(n), AudioFile(str(path), 0.1 * n), "") for n in range(9)]
    rows = [*rows, Row("none", AudioFile("none.wav"), "")] * 30
    seen = Seen()
    found = measure(rows, 16000, seen)
    assert seen.done == [256, 300]
    assert found.durations[:9].tolist() == pytest.approx([1 - 0.1 * n for n in range(9)])
    assert found.problems[9] == MISSING and found.durations[9] == 0
    again = measure(rows, 16000, seen)
    assert seen.done == [256, 300]
    assert again.durations.tolist() == found.durations.tolist()
    assert list(again.problems) == list(found.problems)
    times = path.stat().st_mtime_ns
    write(path, seconds=2, sample_rate=8000)  # of the same size
    os.utime(path, ns=(times, times))
    assert measure(rows, 16000, seen).durations[0] == 2
    moved = path.rename(tmp_path / "b.wav")
    seen.done.clear()
    rows = [replace(row, recording=replace(row.recording, path=str(moved))) for row in rows[:9]]
    assert measure(rows, 16000, seen).durations[0] == 2 and seen.done == [9]
    assert len(measure([], 16000, SILENT)) == 0
