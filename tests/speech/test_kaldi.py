"""Kaldi's folders: whole recordings, segments, commands that are never run."""

from pathlib import Path

import pytest

from magneto.data.counts import MALFORMED, Counts
from magneto.speech.kaldi import COMMANDS, NO_RECORDING, NO_TEXT, kaldi_rows


def read(folder: Path, **files: str) -> tuple[list[tuple], Counts]:
    for name, content in files.items():
        (folder / name.replace("wav", "wav.scp")).write_text(content)
    counts = Counts()
    rows = kaldi_rows(folder, counts)
    found = [(r.id, r.recording.path, r.recording.start, r.recording.stop, r.text, r.speaker)
             for r in rows]  # fmt: skip
    return found, counts


def test_whole_recordings(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    rows, counts = read(
        tmp_path, wav="u1 a.wav\nu2 /else/b.flac\n", text="u1  hello  you\nu2 x\n", utt2spk="u1 s\n"
    )
    assert not counts
    assert rows == [
        ("u1", str(tmp_path / "a.wav"), 0.0, None, "hello  you", "s"),
        ("u2", "/else/b.flac", 0.0, None, "x", ""),
    ]


def test_segments(tmp_path: Path) -> None:
    rows, counts = read(
        tmp_path,
        wav="r /a.wav\n",
        segments="u1 r 0.5 2.25\nu2 r 3 -1\nu3 none 0 1\nu4 r 5 6\nu5 r soon 6\nu6\n\n",
        text="u1 one\nu2 two\nu3 three\nu7 seven\n",
    )
    assert [row[:4] for row in rows] == [
        ("u1", "/a.wav", 0.5, 2.25), ("u2", "/a.wav", 3.0, None),
    ]  # fmt: skip
    assert counts == {NO_RECORDING: 2, NO_TEXT: 1, MALFORMED: 2}


def test_commands_are_read_and_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    rows, counts = read(
        tmp_path,
        wav=f"u1 flac -cds '/a b.flac' |\nu2 touch {trap} |\nu3 sox /x.wav -t wav - |\nu4 ' |\n",
        text="u1 one\nu2 two\nu3 three\nu4 four\n",
    )
    assert [row[1] for row in rows] == ["/a b.flac", "/x.wav"]
    assert counts == {COMMANDS: 2, MALFORMED: 2, NO_RECORDING: 2}
    assert not trap.exists()


def test_no_transcripts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has a wav.scp and no text"):
        read(tmp_path, wav="u1 a.wav\n")
