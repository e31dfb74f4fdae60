"""A folder like a data set of the hub: sound as bytes, decoded by soundfile."""

from pathlib import Path

import pytest

from magneto.data.counts import MALFORMED, Counts
from magneto.data.sources import parse_source
from magneto.speech.audio import MISSING, UNREADABLE
from magneto.speech.hub import HubSpeech
from tests.speech.wavs import write

datasets = pytest.importorskip("datasets", reason="datasets is not installed")
pytest.importorskip("soundfile", reason="soundfile is not installed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sound = write(tmp_path / "a.flac").read_bytes()
    path = str(write(tmp_path / "b.wav", seconds=2))
    audio = [{"bytes": sound, "path": "a.flac"}, {"bytes": None, "path": path},
             {"bytes": b"no sound", "path": "c"}, None, {"bytes": sound, "path": "d"}]  # fmt: skip
    values = {"audio": audio, "text": ["one", "two", "three", "four", None], "speaker_id": [1] * 5}
    table = datasets.Dataset.from_dict(values)
    table = table.cast_column("audio", datasets.Audio(decode=False))
    (tmp_path / "set").mkdir()
    for split in ("train", "test"):
        table.to_parquet(str(tmp_path / "set" / f"{split}.parquet"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    return tmp_path / "set"


def test_rows(folder: Path) -> None:
    source = HubSpeech(parse_source(f"hf:{folder}"))
    assert sorted(source.splits) == ["test", "train"]
    counts = Counts()
    rows = source.rows("train", counts)
    assert counts == {MALFORMED: 1}
    assert [(r.id, r.text, r.speaker) for r in rows] == [
        ("train-0", "one", "1"), ("train-1", "two", "1"), ("train-2", "three", "1"),
        ("train-3", "four", "1"),
    ]  # fmt: skip
    assert [r.recording.seconds() for r in rows] == [
        (1.0, ""), (2.0, ""), (0.0, UNREADABLE), (0.0, MISSING),
    ]  # fmt: skip
    sounds = [r.recording.read(16000) for r in rows]
    assert [len(s.samples) for s in sounds] == [16000, 32000, 0, 0]
    assert rows[0].recording.state() != rows[1].recording.state()
    assert HubSpeech(parse_source(f"hf:{folder}::test")).splits == ["test"]


def test_a_set_without_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(ValueError, match=r"no column of sound, or none of text .*; it has text"):
        HubSpeech(parse_source(f"hf:{tmp_path / 'set'}")).rows("train", Counts())
