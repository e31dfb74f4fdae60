"""Folders are recognised by how they are laid out; each utterance finds its sound and its text."""

import os
from pathlib import Path

import pytest

from magneto.data.counts import Counts
from magneto.speech.config import SpeechDataConfig
from magneto.speech.files import open_files
from magneto.speech.splits import load_speech
from tests.speech.wavs import write

pytest.importorskip("soundfile", reason="soundfile is not installed")


def rows(source: Path, split: str) -> list[tuple[str, str, str, float]]:
    """Return id, text, speaker and seconds of a split's utterances."""
    counts = Counts()
    found = open_files(str(source)).rows(split, counts)
    assert not counts
    return [(row.id, row.text, row.speaker, row.recording.seconds()[0]) for row in found]


def librispeech(root: Path) -> Path:
    for split, speaker, chapter in (
        ("train-clean-100", 19, 198), ("train-clean-100", 26, 1), ("dev-clean", 84, 2),
        ("test-other", 7, 3),
    ):  # fmt: skip
        folder = root / split / str(speaker) / str(chapter)
        lines = []
        for number in range(2):
            id = f"{speaker}-{chapter}-{number:04d}"
            write(folder / f"{id}.flac", seconds=1 + number)
            lines.append(f"{id} CHAPTER {chapter} LINE {number}\n")
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return root


def test_librispeech(tmp_path: Path) -> None:
    root = librispeech(tmp_path / "LibriSpeech")
    assert sorted(open_files(str(root)).splits) == ["dev-clean", "test-other", "train-clean-100"]
    assert rows(root, "train-clean-100") == [
        ("19-198-0000", "CHAPTER 198 LINE 0", "19", 1.0),
        ("19-198-0001", "CHAPTER 198 LINE 1", "19", 2.0),
        ("26-1-0000", "CHAPTER 1 LINE 0", "26", 1.0),
        ("26-1-0001", "CHAPTER 1 LINE 1", "26", 2.0),
    ]
    assert open_files(str(root / "dev-clean")).splits == ["dev-clean"]
    assert len(rows(root / "dev-clean", "dev-clean")) == 2
    (root / "dev-clean/84/2/84-2-0000.flac").unlink()  # it stays, with nothing to hear
    assert rows(root, "dev-clean")[0] == ("84-2-0000", "CHAPTER 2 LINE 0", "84", 0.0)


def test_common_voice(tmp_path: Path) -> None:
    folder = tmp_path / "cv-corpus-1" / "en"
    for split in ("train", "dev", "test", "validated"):
        write(folder / "clips" / f"{split}.mp3")
        (folder / f"{split}.tsv").write_text(
            f'client_id\tpath\tsentence\tage\nanna\t{split}.mp3\tIt\'s "{split}".\t\n'
        )
    (folder / "reported.tsv").write_text("sentence\tid\n")
    for source in (tmp_path, folder):
        assert open_files(str(source)).splits == ["train", "dev", "test", "validated"]
        assert rows(source, "dev") == [("dev", 'It\'s "dev".', "anna", pytest.approx(1, abs=0.1))]
    write(tmp_path / "cv-corpus-1" / "de" / "clips" / "a.mp3")
    with pytest.raises(ValueError, match="several languages: name one"):
        open_files(str(tmp_path))


def test_a_folder_of_manifests(tmp_path: Path) -> None:
    write(tmp_path / "audio" / "a.wav")
    for name in ("train.tsv", "dev.tsv", "dev.jsonl"):
        line = "audio\ttext\naudio/a.wav\tHello\n"
        if name.endswith("jsonl"):
            line = '{"audio": "audio/a.wav", "text": "Hello"}\n'
        (tmp_path / name).write_text(line)
    assert open_files(str(tmp_path)).splits == ["dev", "train"]
    assert rows(tmp_path, "train") == [("audio/a", "Hello", "", 1.0)]
    assert len(rows(tmp_path, "dev")) == 2
    assert open_files(str(tmp_path / "dev.tsv")).splits == ["dev"]


def test_kaldi_folders(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        folder = tmp_path / split
        write(folder / "r.wav", seconds=3)
        (folder / "wav.scp").write_text(f"r {folder / 'r.wav'}\n")
        (folder / "text").write_text("r hello you\n")
    assert sorted(open_files(str(tmp_path)).splits) == ["dev", "train"]
    assert rows(tmp_path, "dev") == rows(tmp_path / "dev", "dev") == [("r", "hello you", "", 3.0)]


def test_folders_that_kaldi_cut_for_its_jobs_are_no_splits(tmp_path: Path) -> None:
    for place in ("data/train", "data/train/split2/1", "data/train/.backup", "data/dev"):
        folder = tmp_path / place
        write(folder / "r.wav")
        (folder / "wav.scp").write_text(f"r {folder / 'r.wav'}\n")
        (folder / "text").write_text("r hello you\n")
    assert open_files(str(tmp_path)).splits == ["data/dev", "data/train"]
    found = load_speech(SpeechDataConfig(source=str(tmp_path)), 1)
    assert [row.recording.path for row in found.train.rows] == [f"{tmp_path}/data/train/r.wav"]
    assert [row.recording.path for row in found.validation.rows] == [f"{tmp_path}/data/dev/r.wav"]


def test_what_is_no_speech(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"no transcripts in .*LibriSpeech.*Kaldi"):
        open_files(str(tmp_path))
    with pytest.raises(ValueError, match=r"is no manifest: a file ends in .tsv"):
        open_files(str(tmp_path / "notes.txt"))
    with pytest.raises(FileNotFoundError, match=r"did you mean .*notes.txt"):
        open_files(str(tmp_path / "note.txt"))
    assert os.listdir(tmp_path) == ["notes.txt"]
