"""Every source says the same of its utterances; records that make none are counted and named."""

import json
from pathlib import Path
from typing import Any

import pytest

from magneto.data.problems import MALFORMED, Counts
from magneto.data.table import Table
from magneto.progress import SILENT
from magneto.speech.audio import MISSING, UNREADABLE, Segment
from magneto.speech.config import SpeechDataConfig
from magneto.speech.data import (
    COMMANDS,
    NO_RECORDING,
    NO_TEXT,
    Utterances,
    add_headers,
    open_source,
    read_utterances,
    splits_of_kind,
)
from tests.shards import write_shard
from tests.unit.speech.wavs import write

pytest.importorskip("soundfile", reason="soundfile is not installed")


def read(source: Path | str, *splits: str, **options: Any) -> tuple[Table, Counts]:
    """Return the utterances of splits of a source, by default of its only one."""
    counts, config = Counts(), SpeechDataConfig(source=str(source), **options)
    there = open_source(config.source, config, 1, SILENT)
    found = read_utterances(there, splits or splits_of_kind(there, "train"), config, counts)
    del counts["read"]
    return found, counts


def splits(source: Path | str) -> list[str]:
    return sorted(open_source(str(source), SpeechDataConfig(), 1, SILENT))


def rows(table: Table) -> list[tuple[str, str, str, Segment]]:
    return [(r["id"], r["text"], r["speaker"], r["segment"]) for r in map(table.__getitem__,
            range(len(table)))]  # fmt: skip


def seconds(table: Table) -> list[float]:
    return add_headers(table, SILENT).values("seconds").tolist()


WHOLE = Segment()


def test_a_table_of_pieces(tmp_path: Path) -> None:
    """Blanks in a text are one."""
    (tmp_path / "a.csv").write_text(
        "id,audio,start,duration,text,speaker\nx,x.wav,,,hello you,anna\n"
        'y,sub/y.wav,1.5,0.5," a,  b",bert\n'
    )
    table, counts = read(tmp_path / "a.csv")
    assert not +counts and table[1]["audio"].file() == str(tmp_path / "sub" / "y.wav")
    assert rows(table) == [
        ("x", "hello you", "anna", WHOLE), ("y", "a, b", "bert", Segment(1.5, 2.0)),
    ]  # fmt: skip


def test_columns_have_other_names_too(tmp_path: Path) -> None:
    """NeMo's, the hub's, and those that the recipe names."""
    lines = [
        {"audio_filepath": "/data/a.wav", "duration": 3.2, "text": "whole"},
        {"audio_filepath": "/data/a.wav", "offset": 0, "duration": 1.0, "text": "part"},
        {"audio_filepath": {"path": "b.wav", "bytes": None}, "text": "said", "client_id": 7},
    ]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, lines)))
    assert rows(read(tmp_path / "a.json")[0]) == [
        ("/data/a", "whole", "/data/a", WHOLE),
        ("/data/a-0.00", "part", "/data/a-0.00", Segment(0.0, 1.0)),
        ("b", "said", "7", WHOLE),
    ]
    (tmp_path / "b.csv").write_text("one,two,text\na.wav,yes,no\n")
    table, _ = read(tmp_path / "b.csv", audio_column="one", text_column="two", text_case="upper")
    assert rows(table) == [("a", "YES", "a", WHOLE)]
    with pytest.raises(ValueError, match=r"b.csv has no column 'audio' among .*data.audio_column"):
        read(tmp_path / "b.csv")
    (tmp_path / "c.tsv").write_text("a.wav\thello\n")
    with pytest.raises(ValueError, match="write one above it: audio<TAB>text"):
        read(tmp_path / "c.tsv")


def test_what_makes_no_utterance_is_counted(tmp_path: Path) -> None:
    lines = [
        {"audio": "a.wav", "text": ""},  # nothing said: known later
        {"audio": "a.wav"},
        {"text": "no sound"},
        {"audio": "a.wav", "text": "x", "start": 3, "stop": 2},
        {"audio": "a.wav", "text": "x", "start": 2, "stop": 2},
        {"audio": "a.wav", "text": "x", "start": "nan", "stop": 2},
        {"audio": 5, "text": "x"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([*map(json.dumps, lines), "{", "7"]))
    table, counts = read(path)
    assert table.values("text") == [""] and +counts == {MALFORMED: 8}
    assert f"{path}, record 2: no audio, or no text" in counts.named[MALFORMED]


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
    assert splits(root) == ["dev-clean", "test-other", "train-clean-100"]
    table, counts = read(root, "train-clean-100")
    assert rows(table) == [
        ("19-198-0000", "CHAPTER 198 LINE 0", "19", WHOLE),
        ("19-198-0001", "CHAPTER 198 LINE 1", "19", WHOLE),
        ("26-1-0000", "CHAPTER 1 LINE 0", "26", WHOLE),
        ("26-1-0001", "CHAPTER 1 LINE 1", "26", WHOLE),
    ]
    assert seconds(table) == [1, 2, 1, 2] and not +counts
    assert table.columns["audio"].key(0) == "train-clean-100/19/198/19-198-0000.flac"
    both, _ = read(root, "dev-clean", "test-other")
    assert both.values("speaker") == ["84", "84", "7", "7"] and seconds(both) == [1, 2, 1, 2]
    assert splits(root / "dev-clean") == ["dev-clean"] and len(read(root / "dev-clean")[0]) == 2
    (root / "dev-clean/84/2/84-2-0000.flac").unlink()  # it stays, with nothing to hear
    assert seconds(read(root, "dev-clean")[0]) == [0, 2]


def test_common_voice_and_other_folders_of_tables(tmp_path: Path) -> None:
    for split in ("train", "dev", "test", "validated"):
        write(tmp_path / "clips" / f"{split}.mp3")
        (tmp_path / f"{split}.tsv").write_text(
            f'client_id\tpath\tsentence\tage\nanna\t{split}.mp3\tIt\'s "{split}".\t\n'
        )
    (tmp_path / "reported.tsv").write_text("sentence\tid\n")
    assert splits(tmp_path) == ["dev", "reported", "test", "train", "validated"]
    table, _ = read(tmp_path, "dev")
    assert rows(table) == [("clips/dev", 'It\'s "dev".', "anna", WHOLE)]
    assert seconds(table) == [pytest.approx(1, abs=0.1)]
    (tmp_path / "dev.jsonl").write_text('{"path": "clips/dev.mp3", "sentence": "Hello"}\n')
    with pytest.raises(ValueError, match="two files for one split"):
        splits(tmp_path)


def test_texts_beside_recordings(tmp_path: Path) -> None:
    for place in ("train/anna/a", "train/b", "dev/c"):
        write(tmp_path / f"{place}.wav")
        (tmp_path / f"{place}.txt").write_text("two\nlines\n")
    for name in ("mute", "odd"):
        write(tmp_path / "train" / f"{name}.wav")
    (tmp_path / "train" / "odd.txt").write_bytes(b"\0\0")
    assert splits(tmp_path) == ["dev", "train"] and splits(tmp_path / "train") == ["train"]
    table, counts = read(tmp_path, "train")
    assert table.values("id") == ["train/b", "train/anna/a"]
    assert set(table.values("text")) == {"two lines"} and counts[MALFORMED] == 1


def test_tar_shards(tmp_path: Path) -> None:
    for split in ("train", "test"):
        members = {}
        for n in range(2):
            members[f"{n}.wav"] = write(tmp_path / "a.wav", seconds=1 + n).read_bytes()
            members[f"{n}.txt"] = f"said {n}".encode()
        write_shard(tmp_path / f"{split}-00.tar", members)
    (tmp_path / "a.wav").unlink()
    assert splits(tmp_path) == ["test", "train"]
    table, _ = read(tmp_path, "train")
    assert rows(table) == [(str(n), f"said {n}", str(n), WHOLE) for n in (0, 1)]
    assert seconds(table) == [1, 2]
    assert len(Utterances(table, 16000).sound(1).samples) == 32000
    with pytest.raises(ValueError, match="splits train, test are not in one folder"):
        read(tmp_path, "train", "test")


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound as bytes, decoded here."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    sound = write(tmp_path / "a.flac").read_bytes()
    path = str(write(tmp_path / "b.wav", seconds=2))
    audio = [{"bytes": sound, "path": "a.flac"}, {"bytes": None, "path": path},
             {"bytes": b"no sound", "path": "c"}, None, {"bytes": sound, "path": "d"}]  # fmt: skip
    values = {"speech": audio, "text": ["one", "two", "three", "four", None], "speaker_id": [1] * 5}
    table = datasets.Dataset.from_dict(values)
    table = table.cast_column("speech", datasets.Audio(decode=False))
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "test"):
        table.to_parquet(str(folder / f"{split}.parquet"))
    for source in (folder, f"hf:{folder}"):
        assert splits(source) == ["test", "train"]
        found, counts = read(source, "train")
        assert +counts == {MALFORMED: 1}
        assert found.values("text") == ["one", "two", "three", "four"]
        assert set(found.values("speaker")) == {"1"}
        known = add_headers(found, SILENT)
        assert known.values("seconds").tolist() == [1, 2, 0, 0]
        assert known.values("problem") == ["", "", UNREADABLE, MISSING]
        split = Utterances(known, 16000)
        assert [len(split.sound(n).samples) for n in range(4)] == [16000, 32000, 0, 0]
    assert splits(f"hf:{folder}::test") == ["test"]
    (folder / "train.parquet").unlink()
    datasets.Dataset.from_dict({"text": ["hello"]}).to_parquet(str(folder / "test.parquet"))
    with pytest.raises(ValueError, match="has no column 'audio' among 'text'"):
        read(folder, "test")


def kaldi(folder: Path, **files: str) -> tuple[list[tuple], Counts]:
    for name, content in files.items():
        (folder / name.replace("wav", "wav.scp")).write_text(content)
    table, counts = read(folder)
    found = [(r["id"], r["audio"].file(), r["segment"], r["text"], r["speaker"])
             for r in map(table.__getitem__, range(len(table)))]  # fmt: skip
    return found, Counts(+counts)


def test_kaldi(tmp_path: Path) -> None:
    """Commands are read and not run."""
    (tmp_path / "a.wav").touch()
    trap = tmp_path / "trap"
    commands = f"u3 flac -cds '/a b.flac' |\nu4 touch {trap} |\nu5 sox /x.wav -t wav - |\nu6 ' |\n"
    found, counts = kaldi(
        tmp_path, wav=f"u1 a.wav\nu2 /else/b.flac\n{commands}", utt2spk="u1 s\n",
        text="u1  hello  you\nu2 x\nu3 three\nu4 four\nu5 five\n",
    )  # fmt: skip
    assert counts == {COMMANDS: 2, MALFORMED: 2, NO_RECORDING: 1} and not trap.exists()
    assert found == [
        ("u1", str(tmp_path / "a.wav"), WHOLE, "hello you", "s"),
        ("u2", "/else/b.flac", WHOLE, "x", "u2"),
        ("u3", "/a b.flac", WHOLE, "three", "u3"),
        ("u5", "/x.wav", WHOLE, "five", "u5"),
    ]
    found, counts = kaldi(
        tmp_path,
        wav="r /a.wav\n",
        segments="u1 r 0.5 2.25\nu2 r 3 -1\nu3 none 0 1\nu4 r 5 6\nu5 r soon 6\nu6\n\n",
        text="u1 one\nu2 two\nu3 three\nu5 five\nu7 seven\n",
    )
    assert [(id, path, segment) for id, path, segment, *_ in found] == [
        ("u1", "/a.wav", Segment(0.5, 2.25)), ("u2", "/a.wav", Segment(3.0)),
    ]  # fmt: skip
    assert counts == {NO_RECORDING: 2, NO_TEXT: 1, MALFORMED: 2}
    (tmp_path / "text").unlink()
    with pytest.raises(ValueError, match=r"has a wav.scp but no file named text"):
        kaldi(tmp_path)


def test_folders_that_kaldi_cut_for_its_jobs_are_no_splits(tmp_path: Path) -> None:
    for place in ("data/train", "data/train/split2/1", "data/train/.backup", "data/dev"):
        folder = tmp_path / place
        write(folder / "r.wav")
        (folder / "wav.scp").write_text(f"r {folder / 'r.wav'}\n")
        (folder / "text").write_text("r hello you\n")
    assert splits(tmp_path) == ["data/dev", "data/train"]
    table, _ = read(tmp_path, "data/dev")
    assert table.columns["audio"].key(0) == "data/dev/r.wav" and seconds(table) == [1]


def test_what_is_no_speech(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"no transcripts in .*LibriSpeech.*Kaldi"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"did you mean .*notes.txt"):
        read(tmp_path / "note.txt")
