"""Utterances of every source: who is trained on, who is validated on, what is left out."""

import os
from pathlib import Path
from typing import Any

import pytest

from magneto.data.problems import EMPTY, MALFORMED, Counts
from magneto.data.sources import hash_of
from magneto.data.table import Table
from magneto.progress import SILENT
from magneto.speech import data
from magneto.speech.audio import MISSING, NO_FRAMES, NO_SAMPLES, UNREADABLE, Segment, Waveform
from magneto.speech.config import SpeechDataConfig
from magneto.speech.features import Features, FilterBank
from tests.recorded_progress import RecordedProgress
from tests.shards import write_lines, write_shard
from tests.unit.speech.wavs import write, write_table

pytest.importorskip("soundfile", reason="soundfile is not installed")


def read(source: Path | str, *splits: str, **options: Any) -> tuple[Table, Counts]:
    """Return the utterances of splits of a source, by default of its only one."""
    counts, config = Counts(), SpeechDataConfig(source=str(source), **options)
    opened = data.open_source(config.source, config, 1, SILENT)
    found = data.read_utterances(
        opened, splits or data.splits_of_kind(opened, "train"), config, counts
    )
    del counts["read"]
    return found, counts


def splits(source: Path | str) -> list[str]:
    return sorted(data.open_source(str(source), SpeechDataConfig(), 1, SILENT))


def rows(table: Table) -> list[tuple[str, str, str, Segment]]:
    return [(r["id"], r["text"], r["speaker"], r["segment"]) for r in map(table.__getitem__,
            range(len(table)))]  # fmt: skip


def seconds(table: Table) -> list[float]:
    return data.add_headers(table, SILENT).values("seconds").tolist()


def sound(table: Table, number: int) -> Waveform:
    config = SpeechDataConfig(cmvn="none")
    return Features(table, FilterBank(config)).sound(number)


WHOLE = Segment()


def test_tables_of_pieces_and_with_other_columns(tmp_path: Path) -> None:
    """Blanks in a text are one. Columns have NeMo's or the hub's names, or the recipe's."""
    (tmp_path / "a.csv").write_text(
        "id,audio,start,duration,text,speaker\nx,x.wav,,9,hello you,anna\n"
        'y,sub/y.wav,1.5,0.5," a,  b",bert\n'
    )
    table, counts = read(tmp_path / "a.csv")
    assert not +counts and table[1]["audio"].file() == str(tmp_path / "sub" / "y.wav")
    assert rows(table) == [
        ("x", "hello you", "anna", WHOLE), ("y", "a, b", "bert", Segment(1.5, 2.0)),
    ]  # fmt: skip
    lines = [
        {"audio_filepath": "/data/a.wav", "offset": 0, "duration": 1.0, "text": "part"},
        {"audio_filepath": {"path": "b.wav", "bytes": None}, "text": "said", "client_id": 7},
    ]
    assert rows(read(write_lines(tmp_path / "a.json", lines))[0]) == [
        ("/data/a-0.00", "part", "/data/a-0.00", Segment(0.0, 1.0)),
        ("b", "said", "7", WHOLE),
    ]
    (tmp_path / "b.csv").write_text("one,two,text\na.wav,Yes,no\n")
    columns = {"audio_column": "one", "text_column": "two"}
    for case, said in (("upper", "YES"), ("lower", "yes"), ("keep", "Yes")):
        table, _ = read(tmp_path / "b.csv", **columns, text_case=case)
        assert rows(table) == [("a", said, "a", WHOLE)]
    with pytest.raises(ValueError, match=r"b.csv has no column 'audio' .*data.audio_column"):
        read(tmp_path / "b.csv")
    lines = [{"audio": "a.wav", "text": "x", "split": split} for split in ("train", "dev")]
    path = write_lines(tmp_path / "c.jsonl", [*lines, "{", {"split": "dev"}])
    _, counts = read(path, "train", "validation")
    assert +counts == {MALFORMED: 2}  # once for both splits
    assert counts.named[MALFORMED][1] == f"{path}, line 4: no audio, or no text"


def test_librispeech(tmp_path: Path) -> None:
    root = tmp_path / "LibriSpeech"
    for split, speaker, chapter in (
        ("train-clean-100", 19, 198), ("train-clean-100", 26, 1), ("dev-clean", 84, 2),
        ("test-other", 7, 3),
    ):  # fmt: skip
        folder = root / split / str(speaker) / str(chapter)
        lines = []
        for number in range(2):
            id = f"{speaker}-{chapter}-{number:04d}"
            write(folder / f"{id}.{'wav' if speaker == 7 else 'flac'}", seconds=1 + number)
            lines.append(f"{id} CHAPTER {chapter} LINE {number}\n")
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
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
    lines = [{"audio": "a.wav", "text": "x", "split": split} for split in ("train", "dev")]
    write_lines(tmp_path / "alone" / "said.jsonl", lines)
    assert splits(tmp_path / "alone") == ["train", "validation"]
    write_lines(tmp_path / "alone" / "said.jsonl", lines[:1])
    assert splits(tmp_path / "alone") == ["said"]
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
    for split in ("TRAIN", "TEST"):  # TIMIT
        write(tmp_path / "data" / split / "DR1" / "FCJF0" / "SA1.wav")
        (tmp_path / "data" / split / "DR1" / "FCJF0" / "SA1.TXT").write_text("0 4679 She had.\n")
        (tmp_path / "data" / split / "DR1" / "FCJF0" / "SA1.PHN").write_text("0 3050 h#\n")
    table, _ = read(tmp_path / "data", "TRAIN")
    assert table.values("text") == ["She had."]
    assert {"TRAIN", "TEST"} <= {*splits(tmp_path)}


def test_ljspeech(tmp_path: Path) -> None:
    (tmp_path / "wavs").mkdir()
    for name in ("LJ-1", "LJ-2", "LJ-3"):
        write(tmp_path / "wavs" / f"{name}.wav")
    lines = ['LJ-1|He said "no", twice 2 times|He said "no", twice two times', "LJ-2|two", "LJ-3"]
    (tmp_path / "metadata.csv").write_text("\n".join([*lines, ""]))
    found, counts = read(tmp_path)
    assert [(id, text) for id, text, *_ in rows(found)] == [
        ("LJ-1", 'He said "no", twice two times'), ("LJ-2", "two")]  # fmt: skip
    assert counts == {MALFORMED: 1} and seconds(found) == [1.0, 1.0]


def test_tar_shards(tmp_path: Path) -> None:
    members = {}
    for n in range(2):
        members[f"{n}.wav"] = write(tmp_path / "a.wav", seconds=1 + n).read_bytes()
        members[f"{n}.txt"] = f"said {n}".encode()
    for split in ("train", "test"):
        write_shard(tmp_path / "shards" / f"{split}-00.tar", members)
    assert splits(tmp_path / "shards") == ["test", "train"]
    found, _ = read(tmp_path / "shards", "train")
    assert rows(found) == [(str(n), f"said {n}", str(n), WHOLE) for n in (0, 1)]
    assert seconds(found) == [1, 2]
    assert len(sound(found, 1).samples) == 32000


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound as bytes, decoded here."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    flac = write(tmp_path / "a.flac").read_bytes()
    path = str(write(tmp_path / "b.wav", seconds=2))
    audio = [{"bytes": flac, "path": "a.flac"}, {"bytes": None, "path": path},
             {"bytes": b"no sound", "path": "c"}, None, {"bytes": flac, "path": "d"}]  # fmt: skip
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
        known = data.add_headers(found, SILENT)
        assert known.values("seconds").tolist() == [1, 2, 0, 0]
        assert known.values("problem") == ["", "", UNREADABLE, MISSING]
        assert [len(sound(known, n).samples) for n in range(4)] == [16000, 32000, 0, 0]
    assert splits(f"hf:{folder}::test") == ["test"]
    (folder / "train.parquet").unlink()
    datasets.Dataset.from_dict({"text": ["hello"]}).to_parquet(str(folder / "test.parquet"))
    with pytest.raises(ValueError, match=r"has no column 'audio' \(columns: 'text'\)"):
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
    assert counts == {data.COMMANDS: 2, MALFORMED: 2, data.NO_RECORDING: 1} and not trap.exists()
    assert found == [
        ("u1", str(tmp_path / "a.wav"), WHOLE, "hello you", "s"),
        ("u2", "/else/b.flac", WHOLE, "x", "u2"),
        ("u3", "/a b.flac", WHOLE, "three", "u3"),
        ("u5", "/x.wav", WHOLE, "five", "u5"),
    ]
    found, counts = kaldi(
        tmp_path,
        wav="r /a.wav\n",
        utt2spk="u1 s\nu2 t\n",
        segments="u1 r 0.5 2.25\nu2 r 3 -1\nu3 none 0 1\nu4 r 5 6\nu5 r soon 6\nu6\n\n",
        text="u1 one\nu2 two\nu3 three\nu5 five\nu7 seven\n",
    )
    assert found == [
        ("u1", "/a.wav", Segment(0.5, 2.25), "one", "s"),
        ("u2", "/a.wav", Segment(3.0), "two", "t"),
    ]
    assert counts == {data.NO_RECORDING: 2, data.NO_TEXT: 1, MALFORMED: 2}
    (tmp_path / "text").unlink()
    with pytest.raises(ValueError, match=r"has a wav.scp but no file named text"):
        kaldi(tmp_path)


def test_folders_that_kaldi_cut_for_its_jobs_are_no_splits(tmp_path: Path) -> None:
    for place in ("data/train", "data/train/split2/1", "data/train/.backup", "data/dev"):
        write(tmp_path / place / "r.wav")
        kaldi(tmp_path / place, wav=f"r {tmp_path / place / 'r.wav'}\n", text="r hello you\n")
    assert splits(tmp_path) == ["data/dev", "data/train"]
    table, _ = read(tmp_path, "data/dev")
    assert table.columns["audio"].key(0) == "data/dev/r.wav" and seconds(table) == [1]


def load(source: Path, progress=SILENT, **options):
    return data.load_speech(SpeechDataConfig(source=str(source), **options), 1, progress)


def test_splits_by_name(tmp_path: Path) -> None:
    for name, count in (("train", 5), ("extra", 2), ("dev", 3), ("test", 4)):
        write_table(tmp_path, name, count)
    extra = tmp_path / "extra.jsonl"
    extra.write_text('{"audio": "left-out.wav", "text": null}\n' + extra.read_text())
    found = load(tmp_path)
    assert found.train.values("id") == [f"train-{n}" for n in range(5)]
    assert found.validation.values("id") == [f"dev-{n}" for n in range(3)]
    two, one = (
        load(tmp_path, train_splits=("train", "extra"), validation_limit=n, text_case="upper")
        for n in (2, 1)
    )
    assert (len(two.train), len(two.validation)) == (7, 2)
    assert two.counts["validation"][data.BEYOND_LIMIT] == 1
    for limited in (one, two):
        by_hash = sorted((f"dev-{n}" for n in range(3)), key=hash_of)[: len(limited.validation)]
        assert limited.validation.values("id") == sorted(by_hash)
    assert two.train.values("text")[-2:] == ["NUMBER 0", "NUMBER 1"]
    files = [two.train.columns["audio"].key(n) for n in two.train.rows]
    assert files == [f"{id}.wav" for id in two.train.values("id")]
    tested = load(tmp_path, validation_splits=("test",))
    other = load(tmp_path, train_splits=("extra",), validation_splits=("test",))
    assert len(tested.validation) == 4
    assert len({each.digest for each in (found, tested, other)}) == 3
    with pytest.raises(ValueError, match=r"no split 'tests'; did you mean test\?"):
        load(tmp_path, validation_splits=("tests",))
    found = load(tmp_path, validation_source=str(tmp_path / "extra.jsonl"))
    assert found.validation.values("id") == ["extra-0", "extra-1"]
    (tmp_path / "dev.jsonl").unlink()
    found = load(tmp_path, validation_source=str(tmp_path))  # to measure only
    assert len(found.train) == 0 and found.validation.values("id") == [
        f"test-{n}" for n in range(4)
    ]
    found = load(tmp_path / "extra.jsonl")  # a single one is for training
    assert len(found.train) == len(found.validation) == 1


def test_speakers_are_held_out(tmp_path: Path) -> None:
    """Also where a speaker is a number."""
    path = write_table(tmp_path, "all", 40, speakers=10) / "all.jsonl"
    path.write_text(path.read_text().replace('"speaker": "s', '"speaker": ').replace('"}', "}"))
    found = load(tmp_path, validation_fraction=0.15)
    speakers = [set(split.values("speaker")) for split in (found.train, found.validation)]
    assert speakers[0] | speakers[1] == set(map(str, range(10)))
    for name, split in (("train", found.train), ("validation", found.validation)):
        assert found.counts[name][data.READ] == len(split) == 4 * len(speakers[name != "train"])
    by_one = load(tmp_path, validation_fraction=0.15, hold_out="utterance")
    assert set(by_one.train.values("speaker")) == speakers[0] | speakers[1]


def test_what_is_left_out_of_training_stays_in_validation(tmp_path: Path) -> None:
    for folder in (tmp_path / "train", tmp_path / "dev"):
        write(folder / "good.wav")
        write(folder / "half.wav", seconds=0.5)
        write(folder / "long.wav", seconds=3)
        write(folder / "short.wav", seconds=0.02)
        (folder / "empty.wav").touch()
    wanted = {
        "good.wav": "", "long.wav": data.TOO_LONG, "short.wav": NO_FRAMES, "empty.wav": NO_SAMPLES,
        "none.wav": MISSING,
    }  # fmt: skip
    lines = [{"id": name[:-4], "audio": name, "text": "x"} for name in wanted]
    lines += [{"id": "mute", "audio": "good.wav", "text": " "},
              {"id": "fast", "audio": "half.wav", "text": "x" * 31},
              {"audio": "good.wav"}]  # fmt: skip
    for name in ("train", "dev"):
        its = [each | {"audio": f"{name}/{each['audio']}"} for each in lines]
        write_lines(tmp_path / f"{name}.jsonl", its)
    found = load(tmp_path, max_duration=2.0)
    assert found.train.values("id") == ["good"]
    assert found.excluded == [
        ("long", data.TOO_LONG), ("short", NO_FRAMES), ("empty", NO_SAMPLES), ("none", MISSING),
        ("mute", EMPTY), ("fast", data.TOO_MUCH_TEXT),
    ]  # fmt: skip
    kinds = Counts(why for _, why in found.excluded)
    assert +found.counts["train"] == {data.READ: 7, data.KEPT: 1, MALFORMED: 1, **kinds}
    assert +found.counts["validation"] == {
        data.READ: 7, data.KEPT: 7, MALFORMED: 1, NO_SAMPLES: 1, MISSING: 1
    }  # fmt: skip
    read = [sound(found.validation, n) for n in range(7)]
    assert [each.problem for each in read[:5]] == ["", "", "", NO_SAMPLES, MISSING]
    assert len(read[0].samples) == 16000 and len(read[3].samples) == 0
    features = Features(found.validation, FilterBank(SpeechDataConfig(cmvn="none")))
    assert [features.normalised(n)[1] for n in (0, 2, 3)] == ["", NO_FRAMES, NO_SAMPLES]


def test_sources_without_utterances_are_refused(tmp_path: Path) -> None:
    missing = '{"audio": "none.wav", "text": "x"}\n'
    for name, content, words in (
        ("notes.txt", "hello", r"no transcripts in .*LibriSpeech.*Kaldi"),
        (
            "train.jsonl",
            missing.replace('"x"', "5") + "{\n",
            r"no utterances in .*\(2 malformed records",
        ),
        ("train.jsonl", missing, "too few to hold rows out"),
        ("dev.jsonl", missing, r"has no train utterances: 0 utterances, 1 read \(1 mi"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=words):
            load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"did you mean .*notes.txt"):
        load(tmp_path / "note.txt")


def test_what_is_validated_on_is_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Common Voice's validated.tsv has the recordings of dev.tsv too."""
    write_table(tmp_path, "validated", 6)
    lines = (tmp_path / "validated.jsonl").read_text().splitlines()
    write_lines(tmp_path / "dev.jsonl", lines[:2])
    found = load(tmp_path, train_splits=("validated",), validation_splits=("dev",))
    assert found.train.values("id") == [f"validated-{n}" for n in range(2, 6)]
    assert found.validation.values("id") == ["validated-0", "validated-1"]
    assert found.counts["train"][data.ALSO_VALIDATED] == 2
    assert load(tmp_path).train.values("id") == found.train.values("id")  # by their names
    assert found.excluded == [(id, data.ALSO_VALIDATED) for id in ("validated-0", "validated-1")]
    # Also utterances beyond the limit, and recordings by another path.
    monkeypatch.chdir(tmp_path)
    for more in ({"validation_splits": ("dev",), "validation_limit": 1},
                 {"validation_source": str(tmp_path / "dev.jsonl")}):  # fmt: skip
        assert load(Path("."), train_splits=("validated",), **more).excluded == found.excluded


def test_headers_are_read_once_and_again_of_what_has_changed(tmp_path: Path) -> None:
    path, progress = write(tmp_path / "a.wav"), RecordedProgress()
    lines = [{"id": f"u{n}", "audio": "a.wav", "text": "x", "start": 0.1 * n, "stop": 1.0}
             for n in range(9)]  # fmt: skip
    write_lines(tmp_path / "all.jsonl", lines)
    found = load(tmp_path, progress, hold_out="utterance").train
    expected = [1 - 0.1 * int(id[1:]) for id in found.values("id")]
    assert found.values("seconds").tolist() == pytest.approx(expected)
    lengths = [len(sound(found, n).samples) for n in range(len(found))]
    assert lengths == [round(16000 * each) for each in expected]
    assert progress.work == {"reading headers of recordings"}
    for changed in ("", "segments", "recording"):
        progress.work.clear()
        times = path.stat().st_mtime_ns
        if changed == "segments":
            write_lines(tmp_path / "all.jsonl", [each | {"stop": 0.95} for each in lines])
        if changed == "recording":
            write(path, seconds=2, sample_rate=8000, quiet=True)  # of the same size
            os.utime(path, ns=(times, times))
        load(tmp_path, progress, hold_out="utterance")
        assert bool(progress.work) == bool(changed)
