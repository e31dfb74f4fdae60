"""Who is trained on and who is validated on; what is left out of training, and only there."""

import json
import os
from pathlib import Path

import pytest

from magneto.data.problems import EMPTY, MALFORMED, Counts
from magneto.progress import SILENT
from magneto.speech.audio import MISSING, NO_FRAMES, NO_SAMPLES
from magneto.speech.config import SpeechDataConfig
from magneto.speech.data import (
    ALSO_VALIDATED,
    BEYOND_LIMIT,
    KEPT,
    READ,
    TOO_LONG,
    TOO_MUCH_TEXT,
    load_speech,
)
from tests.said import Said
from tests.unit.speech.wavs import write

pytest.importorskip("soundfile", reason="soundfile is not installed")


def table(folder: Path, name: str, count: int, speakers: int = 1) -> Path:
    for n in range(count):
        write(folder / f"{name}-{n}.wav", seconds=1.0)
    lines = [
        {"id": f"{name}-{n}", "audio": f"{name}-{n}.wav", "text": f"Number {n}",
         "speaker": f"s{n % speakers}"}
        for n in range(count)
    ]  # fmt: skip
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def load(source: Path, progress=SILENT, **options):
    return load_speech(SpeechDataConfig(source=str(source), **options), 1, progress)


def test_splits_by_name(tmp_path: Path) -> None:
    for name, count in (("train", 5), ("extra", 2), ("dev", 3), ("test", 4)):
        table(tmp_path, name, count)
    found = load(tmp_path)
    assert found.train.ids == [f"train-{n}" for n in range(5)]
    assert found.validation.ids == [f"dev-{n}" for n in range(3)]
    found = load(tmp_path, train_splits=("train", "extra"), validation_splits=("test",))
    assert (len(found.train), len(found.validation)) == (7, 4)
    with pytest.raises(ValueError, match=r"no split 'tests'; did you mean test\?"):
        load(tmp_path, validation_splits=("tests",))
    found = load(tmp_path, validation_source=str(tmp_path / "extra.jsonl"))
    assert found.validation.ids == ["extra-0", "extra-1"]
    (tmp_path / "dev.jsonl").unlink()
    found = load(tmp_path, validation_source=str(tmp_path))  # to measure only
    assert len(found.train) == 0 and found.validation.ids == [f"test-{n}" for n in range(4)]
    found = load(tmp_path / "extra.jsonl")  # a single one is for training
    assert len(found.train) == len(found.validation) == 1


def test_speakers_are_held_out(tmp_path: Path) -> None:
    """Also where a speaker is a number; and no side is left empty, however small a share."""
    path = table(tmp_path, "all", 40, speakers=10) / "all.jsonl"
    path.write_text(path.read_text().replace('"speaker": "s', '"speaker": ').replace('"}', "}"))
    found = load(tmp_path, validation_fraction=0.15)
    speakers = [set(split.table.values("speaker")) for split in (found.train, found.validation)]
    assert speakers[0] | speakers[1] == set(map(str, range(10)))
    assert not speakers[0] & speakers[1] and 1 <= len(speakers[1]) <= 4
    for name, split in (("train", found.train), ("validation", found.validation)):
        assert found.counts[name][READ] == len(split) == 4 * len(speakers[name != "train"])
    by_one = load(tmp_path, validation_fraction=0.15, hold_out="utterance")
    assert set(by_one.train.table.values("speaker")) == speakers[0] | speakers[1]
    for fraction in (1e-9, 1 - 1e-9):
        found = load(tmp_path, validation_fraction=fraction)
        assert min(len(found.train), len(found.validation)) > 0


def test_a_column_of_splits_is_followed(tmp_path: Path) -> None:
    path = table(tmp_path, "all", 6) / "all.jsonl"
    kinds = iter(["train", "dev", "test"] * 2)
    lines = [json.dumps(json.loads(line) | {"split": next(kinds)})
             for line in path.read_text().splitlines()]  # fmt: skip
    path.write_text("\n".join([*lines, "{broken"]))
    found = load(path)
    assert found.train.ids == ["all-0", "all-3"] and found.validation.ids == ["all-1", "all-4"]
    assert found.counts["train"][MALFORMED] + found.counts["validation"][MALFORMED] == 1


def test_what_is_left_out_of_training_stays_in_validation(tmp_path: Path) -> None:
    for folder in (tmp_path / "train", tmp_path / "dev"):
        write(folder / "good.wav")
        write(folder / "long.wav", seconds=3)
        write(folder / "short.wav", seconds=0.02)
        (folder / "empty.wav").touch()
    wanted = {
        "good.wav": "", "long.wav": TOO_LONG, "short.wav": NO_FRAMES, "empty.wav": NO_SAMPLES,
        "none.wav": MISSING,
    }  # fmt: skip
    lines = [{"id": name[:-4], "audio": name, "text": "x"} for name in wanted]
    lines += [{"id": "mute", "audio": "good.wav", "text": " "},
              {"id": "fast", "audio": "good.wav", "text": "x" * 61},
              {"audio": "good.wav"}]  # fmt: skip
    for name in ("train", "dev"):
        its = [each | {"audio": f"{name}/{each['audio']}"} for each in lines]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, its)))
    found = load(tmp_path, max_duration=2.0)
    assert found.train.ids == ["good"]
    assert found.excluded == [
        ("long", TOO_LONG), ("short", NO_FRAMES), ("empty", NO_SAMPLES), ("none", MISSING),
        ("mute", EMPTY), ("fast", TOO_MUCH_TEXT),
    ]  # fmt: skip
    kinds = Counts(why for _, why in found.excluded)
    assert +found.counts["train"] == {READ: 7, KEPT: 1, MALFORMED: 1, **kinds}
    assert +found.counts["validation"] == {
        READ: 7, KEPT: 7, MALFORMED: 1, NO_SAMPLES: 1, MISSING: 1
    }  # fmt: skip
    read = [found.validation.sound(n) for n in range(7)]
    assert [each.problem for each in read[:5]] == ["", "", "", NO_SAMPLES, MISSING]
    assert len(read[0].samples) == 16000 and len(read[3].samples) == 0


@pytest.mark.parametrize(
    ("train", "dev", "words"),
    [
        ('{"audio": "none.wav", "text": 5}\n{\n', "",
         r"no utterances in .*train.jsonl \(2 malformed records"),
        ('{"audio": "none.wav", "text": "x"}\n', "", r"too few to hold rows out\. Set data"),
        ('{"audio": "none.wav", "text": "x"}\n', '{"audio": "none.wav", "text": "x"}\n',
         r"has no train utterances: 0 utterances, 1 read \(1 mi"),
    ],
)  # fmt: skip
def test_no_utterances(train: str, dev: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(train)
    if dev:
        (tmp_path / "dev.jsonl").write_text(dev)
    with pytest.raises(ValueError, match=words):
        load(tmp_path)


def test_limit_and_case(tmp_path: Path) -> None:
    table(tmp_path, "train", 3)
    table(tmp_path, "dev", 30)
    found, fewer = (load(tmp_path, validation_limit=n, text_case="upper") for n in (10, 4))
    assert len(found.validation) == 10 and found.counts["validation"][BEYOND_LIMIT] == 20
    assert set(fewer.validation.ids) < set(found.validation.ids)
    assert found.train.texts == ["NUMBER 0", "NUMBER 1", "NUMBER 2"]


def test_a_digest_names_texts_and_sound_wherever_they_lie(tmp_path: Path) -> None:
    folder = table(tmp_path / "a", "train", 8)
    before = load(folder).digest
    assert load(folder, text_case="upper").digest != before
    folder = folder.rename(tmp_path / "b")
    assert load(folder).digest == before
    recording = folder / "train-1.wav"
    header, length = recording.read_bytes()[:44], recording.stat().st_size
    recording.write_bytes(header + bytes(range(1, 11)) * ((length - 44) // 10))
    assert load(folder).digest != before


def test_what_is_validated_on_is_not_trained_on(tmp_path: Path) -> None:
    """Common Voice's validated.tsv has the recordings of dev.tsv too."""
    table(tmp_path, "validated", 6)
    lines = (tmp_path / "validated.jsonl").read_text().splitlines()
    (tmp_path / "dev.jsonl").write_text("\n".join(lines[:2]))
    found = load(tmp_path, train_splits=("validated",), validation_splits=("dev",))
    assert found.train.ids == [f"validated-{n}" for n in range(2, 6)]
    assert found.validation.ids == ["validated-0", "validated-1"]
    assert found.counts["train"][ALSO_VALIDATED] == 2
    assert found.excluded == [(id, ALSO_VALIDATED) for id in ("validated-0", "validated-1")]


def test_headers_are_read_once_and_again_of_what_has_changed(tmp_path: Path) -> None:
    path, said = write(tmp_path / "a.wav"), Said()
    lines = [{"id": f"u{n}", "audio": "a.wav", "text": "x", "start": 0.1 * n, "stop": 1.0}
             for n in range(9)]  # fmt: skip
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = load(tmp_path, said, hold_out="utterance").train
    expected = [1 - 0.1 * int(id[1:]) for id in found.ids]
    assert found.seconds.tolist() == pytest.approx(expected)
    assert said.work == {"reading headers of recordings"}
    for changed in (False, True):
        said.work.clear()
        times = path.stat().st_mtime_ns
        if changed:
            write(path, seconds=2, sample_rate=8000, quiet=True)  # of the same size
            os.utime(path, ns=(times, times))
        load(tmp_path, said, hold_out="utterance")
        assert bool(said.work) == changed
