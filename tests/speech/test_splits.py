"""Who is trained on and who is validated on; what is left out of training, and only there."""

import json
from pathlib import Path

import pytest

from magneto.data.counts import EMPTY, MALFORMED, Counts
from magneto.speech.audio import MISSING, NO_FRAMES, NO_SAMPLES, AudioFile
from magneto.speech.config import SpeechDataConfig
from magneto.speech.splits import (
    ALSO_VALIDATED,
    BEYOND_LIMIT,
    KEPT,
    READ,
    SAME_ID,
    TOO_LONG,
    TOO_MUCH_TEXT,
    hold_out,
    load_speech,
    split_of,
)
from magneto.speech.utterances import Row, beginning
from tests.speech.wavs import write

pytest.importorskip("soundfile", reason="soundfile is not installed")


def manifest(folder: Path, name: str, count: int, speakers: int = 1) -> Path:
    for n in range(count):
        write(folder / f"{name}-{n}.wav", seconds=1.0)
    lines = [
        {
            "id": f"{name}-{n}",
            "audio": f"{name}-{n}.wav",
            "text": f"Number {n}",
            "speaker": f"s{n % speakers}",
        }
        for n in range(count)
    ]
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def ids(split) -> list[str]:
    return [row.id for row in split.rows]


def load(source: Path, **options):
    return load_speech(SpeechDataConfig(source=str(source), **options), 1)


def test_names_of_splits() -> None:
    names = {
        "train-clean-100": "train", "dev_other": "validation", "test": "test",
        "valid": "validation", "set1.val": "validation", "validated": "", "trained": "", "part": "",
    }  # fmt: skip
    assert {name: split_of(name) for name in names} == names
    folders = {"data/train": "train", "data/dev_clean": "validation", "exp/test": "test"}
    assert {name: split_of(name) for name in folders} == folders


def test_splits_by_name(tmp_path: Path) -> None:
    for name, count in (("train", 5), ("extra", 2), ("dev", 3), ("test", 4)):
        manifest(tmp_path, name, count)
    found = load(tmp_path)
    assert ids(found.train) == [f"train-{n}" for n in range(5)]
    assert ids(found.validation) == [f"dev-{n}" for n in range(3)]
    found = load(tmp_path, train_splits=("train", "extra"), validation_splits=("test",))
    assert (len(found.train), len(found.validation)) == (7, 4)
    with pytest.raises(ValueError, match=r"no split 'tests'; did you mean test\?"):
        load(tmp_path, validation_splits=("tests",))
    found = load(tmp_path, validation_source=str(tmp_path / "extra.jsonl"))
    assert ids(found.validation) == ["extra-0", "extra-1"]
    (tmp_path / "dev.jsonl").unlink()
    found = load(tmp_path, validation_source=str(tmp_path))  # to measure only
    assert len(found.train) == 0 and ids(found.validation) == [f"test-{n}" for n in range(4)]


def test_splits_whose_names_say_nothing(tmp_path: Path) -> None:
    for name in ("a", "b", "dev"):
        manifest(tmp_path, name, 2)
    found = load(tmp_path)
    assert ids(found.train) == ["a-0", "a-1", "b-0", "b-1"]
    assert ids(found.validation) == ["dev-0", "dev-1"]
    found = load(tmp_path / "dev.jsonl")  # a single one is for training
    assert len(found.train) == len(found.validation) == 1


def test_speakers_are_held_out(tmp_path: Path) -> None:
    found = load(manifest(tmp_path, "all", 100, speakers=10), validation_fraction=0.15)
    speakers = [{row.speaker for row in split.rows} for split in (found.train, found.validation)]
    assert not speakers[0] & speakers[1]
    assert (len(speakers[0]), len(speakers[1])) == (8, 2)
    assert (len(found.train), len(found.validation)) == (80, 20)
    assert found.counts["train"][READ] == 80 and found.counts["validation"][READ] == 20


def row(number: int, speaker: str = "") -> Row:
    return Row(f"u{number}", AudioFile("a.wav"), "x", speaker)


def test_utterances_are_held_out_where_speakers_are_not_known() -> None:
    for rows, how in (
        ([row(n) for n in range(50)], "speaker"),
        ([row(n, "one") for n in range(50)], "speaker"),
        ([row(n, f"s{n % 2}") for n in range(50)], "utterance"),
    ):
        config = SpeechDataConfig(hold_out=how, validation_fraction=0.1)
        train, held = hold_out(rows, config)
        assert (len(train), len(held)) == (45, 5)
        again = hold_out(rows[::-1], config)[1]
        assert {each.id for each in again} == {each.id for each in held}
    assert [len(part) for part in hold_out([row(1, "a"), row(2, "b")], config)] == [1, 1]
    assert [len(part) for part in hold_out([row(1, "a")], config)] == [1, 0]


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
    lines += [{"id": "good", "audio": "good.wav", "text": "again"},
              {"id": "mute", "audio": "good.wav", "text": " "},
              {"id": "fast", "audio": "good.wav", "text": "x" * 61},
              {"audio": "good.wav"}]  # fmt: skip
    for name in ("train", "dev"):
        its = [each | {"audio": f"{name}/{each['audio']}"} for each in lines]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, its)))
    found = load(tmp_path, max_duration=2.0)
    assert ids(found.train) == ["good", "good+2"]
    assert found.excluded == {
        "long": TOO_LONG, "short": NO_FRAMES, "empty": NO_SAMPLES, "none": MISSING, "mute": EMPTY,
        "fast": TOO_MUCH_TEXT,
    }  # fmt: skip
    assert +found.counts["train"] == Counts(
        {READ: 8, KEPT: 2, MALFORMED: 1, SAME_ID: 1, **dict.fromkeys(found.excluded.values(), 1)}
    )
    assert len(found.validation) == 8
    assert +found.counts["validation"] == Counts(
        {READ: 8, KEPT: 8, MALFORMED: 1, SAME_ID: 1, NO_SAMPLES: 1, MISSING: 1}
    )
    read = [found.validation.utterance(n) for n in range(8)]
    assert [each.problem for each in read[:5]] == ["", "", "", NO_SAMPLES, MISSING]
    assert read[0].duration == 1.0 and read[3].duration == 0.0
    first, second = found.describe("x")
    assert "x, train: 2 utterances, 8 read (" in first and "1 too long" in first
    assert "8 utterances, 8 read (" in second


def test_no_utterances(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"audio": "none.wav", "text": "x"}\n')
    with pytest.raises(ValueError, match="has no validation utterances"):
        load(tmp_path)
    (tmp_path / "dev.jsonl").write_text('{"audio": "none.wav", "text": "x"}\n')
    with pytest.raises(ValueError, match=r"has no train utterances: 0 utterances, 1 read \(1 miss"):
        load(tmp_path)


def test_limit_and_case(tmp_path: Path) -> None:
    manifest(tmp_path, "train", 3)
    manifest(tmp_path, "dev", 30)
    found = load(tmp_path, validation_limit=10, text_case="upper")
    assert len(found.validation) == 10 and found.counts["validation"][BEYOND_LIMIT] == 20
    assert found.train.texts == ["NUMBER 0", "NUMBER 1", "NUMBER 2"]
    fewer = load(tmp_path, validation_limit=4)
    assert set(ids(fewer.validation)) < set(ids(found.validation))
    assert load(tmp_path, text_case="lower").train.texts[0] == "number 0"


def test_a_digest_names_the_content(tmp_path: Path) -> None:
    before = load(manifest(tmp_path, "train", 40)).digest
    assert load(tmp_path).digest == before
    assert load(tmp_path, text_case="upper").digest != before
    write(tmp_path / "train-0.wav", seconds=2)
    assert load(tmp_path).digest != before


def test_a_digest_names_the_sound(tmp_path: Path) -> None:
    before = load(manifest(tmp_path, "train", 4))
    digest, sound = before.digest, before.recordings_digest
    recording = tmp_path / "train-1.wav"
    header, length = recording.read_bytes()[:44], recording.stat().st_size
    recording.write_bytes(header + bytes(range(1, 11)) * ((length - 44) // 10))
    after = load(tmp_path)
    assert after.digest == digest and after.recordings_digest != sound


def test_a_recording_that_can_not_be_read_has_no_content(tmp_path: Path) -> None:
    assert beginning(tmp_path) == beginning(tmp_path / "none") == beginning(None) == b""


def test_what_is_validated_on_is_not_trained_on(tmp_path: Path) -> None:
    """Common Voice's validated.tsv has the recordings of dev.tsv too."""
    manifest(tmp_path, "validated", 6)
    lines = (tmp_path / "validated.jsonl").read_text().splitlines()
    (tmp_path / "dev.jsonl").write_text("\n".join(lines[:2]))
    found = load(tmp_path, train_splits=("validated",), validation_splits=("dev",))
    assert ids(found.train) == [f"validated-{n}" for n in range(2, 6)]
    assert ids(found.validation) == ["validated-0", "validated-1"]
    assert found.counts["train"][ALSO_VALIDATED] == 2
    assert found.excluded == dict.fromkeys(["validated-0", "validated-1"], ALSO_VALIDATED)
