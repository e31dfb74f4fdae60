"""Manifests of every kind say the same; lines that make no utterance are counted."""

import json
from pathlib import Path

import pytest

from magneto.data.counts import MALFORMED, Counts
from magneto.speech.audio import AudioFile
from magneto.speech.manifests import manifest_rows
from magneto.speech.utterances import Row

WANTED = [("x", 0.0, None, "hello you", "anna"), ("y", 1.5, 2.0, "a, b", "bert")]


def read(path: Path, content: str) -> tuple[list[Row], Counts]:
    path.write_text(content)
    counts = Counts()
    return list(manifest_rows(path, counts)), counts


def plain(rows: list[Row]) -> list[tuple]:
    recordings = [row.recording for row in rows]
    assert all(isinstance(each, AudioFile) for each in recordings)
    return [(row.id, row.recording.start, row.recording.stop, row.text, row.speaker)
            for row in rows]  # fmt: skip


def test_kinds(tmp_path: Path) -> None:
    head = ("id", "audio", "start", "duration", "text", "speaker")
    cells = [("x", "x.wav", "", "", "hello you", "anna"),
             ("y", "sub/y.wav", "1.5", "0.5", "a, b", "bert")]  # fmt: skip
    table = "\n".join("\t".join(row) for row in (head, *cells)) + "\n"
    comma = "\n".join(",".join(f'"{cell}"' for cell in row) for row in (head, *cells)) + "\n"
    objects = "\n".join(
        json.dumps({name: cell for name, cell in zip(head, row, strict=True) if cell})
        for row in cells
    )
    for name, content in (("a.tsv", table), ("a.csv", comma), ("a.jsonl", objects),
                          ("a.json", objects)):  # fmt: skip
        rows, counts = read(tmp_path / name, content)
        assert plain(rows) == WANTED and not counts
        assert rows[1].recording.path == str(tmp_path / "sub" / "y.wav")


def test_nemo_and_the_hub_name_columns_otherwise(tmp_path: Path) -> None:
    lines = [
        {"audio_filepath": "/data/a.wav", "duration": 3.2, "text": "whole"},
        {"audio_filepath": "/data/a.wav", "offset": 0, "duration": 1.0, "text": "part"},
        {"audio": {"path": "b.wav", "bytes": None}, "sentence": "said", "client_id": 7},
    ]
    rows, counts = read(tmp_path / "a.json", "\n".join(map(json.dumps, lines)))
    assert not counts
    assert plain(rows) == [
        ("/data/a", 0.0, None, "whole", ""),
        ("/data/a-0.00", 0.0, 1.0, "part", ""),
        ("b", 0.0, None, "said", "7"),
    ]
    assert rows[0].recording.path == "/data/a.wav"


def test_what_makes_no_utterance_is_counted(tmp_path: Path) -> None:
    lines = [
        {"audio": "a.wav", "text": ""},  # nothing said: known later
        {"audio": "a.wav"},
        {"text": "no sound"},
        {"audio": "a.wav", "text": "x", "start": "soon"},
        {"audio": "a.wav", "text": "x", "start": 3, "stop": 2},
        {"audio": "a.wav", "text": "x", "start": "nan", "stop": 2},
        {"audio": 5, "text": "x"},
        {"audio": "a.wav", "text": "x", "channel": "left"},
    ]
    rows, counts = read(tmp_path / "a.jsonl", "\n".join([*map(json.dumps, lines), "{", "7"]))
    assert [row.text for row in rows] == [""]
    assert counts == {MALFORMED: 9}
    rows, counts = read(tmp_path / "a.tsv", "audio\ttext\na.wav\tx\ty\na.wav\tx\n\n")
    assert len(rows) == 1 and counts == {MALFORMED: 1}
    with pytest.raises(ValueError, match=r"a.tsv: its first line names no column of sound"):
        read(tmp_path / "a.tsv", "a.wav\thello\n")
    with pytest.raises(ValueError, match="or none of text"):
        read(tmp_path / "a.tsv", "")
