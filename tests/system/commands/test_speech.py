"""`magneto transcribe` of files and live audio; `magneto evaluate --splits`."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from magneto.cli import main
from magneto.commands.transcribe import as_srt, parser, search_of
from magneto.speech.decoding import GreedySearch, ModifiedBeamSearch
from magneto.speech.long_audio import Word
from magneto.speech.model import Joiner
from magneto.speech.task import error_rate_half_width
from tests.commands import Pieces, answer, outcome, printed, refused
from tests.unit.speech.small import train_small
from tests.unit.speech.wavs import write

pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")


QUICK = ["--window", "1.5", "--symbols-per-frame", "1"]
BEAM = ["--search", "modified", "--beams", "3", "--n-best", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    place = tmp_path_factory.mktemp("transcribe")
    made = train_small(place / "run")
    random = np.random.default_rng(0)
    for name, seconds in (("a", 3.0), ("b", 0.7)):
        soundfile.write(
            place / f"{name}.wav", 0.1 * random.standard_normal(int(8000 * seconds)), 8000
        )
    return made


def transcribed(run: Path, capsys, *words: object) -> str:
    return printed(capsys, "transcribe", run, *words, *QUICK)


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the barely trained model emit a label at every frame."""
    plain = Joiner.logits

    def eager(self, *given):
        logits = plain(self, *given)
        logits[..., 0] -= 3.0
        return logits

    monkeypatch.setattr(Joiner, "logits", eager)


def test_text_and_times_of_files(run: Path, capsys, talkative: None, tmp_path: Path) -> None:
    files = [str(run.parent / f"{name}.wav") for name in "ab"]
    text = transcribed(run, capsys, files[0])
    assert text.strip() and text.count("\n") == 1
    both = transcribed(run, capsys, *files).splitlines()
    other = transcribed(run, capsys, files[1])
    assert both == [f"{files[0]}\t{text.strip()}", f"{files[1]}\t{other.strip()}"]
    record = json.loads(transcribed(run, capsys, files[0], "--json"))
    assert record["text"] == text.strip() == " ".join(word["text"] for word in record["words"])
    assert all(0 <= word["start"] < word["end"] <= 3.05 for word in record["words"])
    assert transcribed(run, capsys, files[0], "--srt").startswith("1\n00:00:00,")
    assert transcribed(run, capsys, *files, "--srt", "--out", str(tmp_path)) == ""
    assert sorted(path.name for path in tmp_path.glob("*.srt")) == ["a.srt", "b.srt"]


def test_n_best_lists(run: Path, capsys, talkative: None, tmp_path: Path) -> None:
    files = [str(run.parent / f"{name}.wav") for name in "ba"]
    words = [*BEAM, "--window", "6"]
    out = printed(capsys, "transcribe", run, *files, *words)
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[2][1]) >= float(rows[3][1]) and rows[2][2] != rows[3][2]
    words += ["--json", "--out", str(tmp_path)]
    assert printed(capsys, "transcribe", run, files[1], *words) == ""
    record = json.loads((tmp_path / "a.jsonl").read_text())
    assert [each["text"] for each in record["transcripts"]] == [row[2] for row in rows[2:]]
    assert record["text"].split() == record["transcripts"][0]["text"].split()
    assert record["words"]


def test_raw_sound_gives_words_as_it_comes(run: Path, capsys, monkeypatch, talkative: None) -> None:
    path = run.parent / "a.wav"
    samples, _ = soundfile.read(path, dtype="int16")
    sound = samples.tobytes()
    pieces = [sound[start : start + 4000] for start in range(0, len(sound), 4000)]
    whole = transcribed(run, capsys, path).split()
    for words in ([], ["--json"]):
        stream = Pieces(*pieces, printed=lambda: capsys.readouterr().out)
        monkeypatch.setattr("sys.stdin", stream)
        rest = transcribed(run, capsys, "-", "--raw", *words)
        said = [*stream.before, rest]
        assert sum(map(bool, said)) > 1
        lines = "".join(said)
        if words:
            lines = " ".join(json.loads(line)["text"] for line in lines.splitlines())
        assert lines.split() == whole


def test_a_recording_that_is_piped_in_is_decoded(
    run: Path, capsys, monkeypatch, talkative: None, tmp_path: Path
) -> None:
    """It has two channels, another sample rate, and floating-point samples if the format allows."""
    samples, _ = soundfile.read(run.parent / "a.wav")
    monkeypatch.setenv("HOME", str(tmp_path))
    for ending, name, words in (
        ("mp3", "-", QUICK), ("ogg", "-", QUICK), ("wav", "-", [*BEAM, "--window", "6"]),
        ("mp3", "~/a.mp3", QUICK),
    ):  # fmt: skip
        path = tmp_path / f"a.{ending}"
        subtype = "FLOAT" if ending == "wav" else None
        soundfile.write(path, np.stack([samples, samples], 1), 16000, subtype=subtype)
        stream = io.TextIOWrapper(io.BytesIO(path.read_bytes()))
        monkeypatch.setattr("sys.stdin", stream)
        found = [printed(capsys, "transcribe", run, x, *words) for x in (name, path)]
        assert found[0] == found[1] and found[0].strip(), ending


def test_samples_alone_are_not_taken_for_a_recording(run: Path, capsys, monkeypatch) -> None:
    for samples in (np.full(9, -1, "<i2"), np.arange(9, dtype="<i2")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(samples.tobytes())))
        assert "use --raw" in refused(capsys, "transcribe", run, "-")


def test_mistakes_are_one_line(run: Path, capsys, monkeypatch, tmp_path: Path) -> None:
    file, other = (str(run.parent / f"{name}.wav") for name in "ab")
    beside = shutil.copy(file, tmp_path)
    (tmp_path / "a.txt").write_text("said")
    for words, message in (
        ([str(run.parent / "c.wav")], "did you mean"),
        ([beside, "--out", str(tmp_path)], f"would overwrite {tmp_path / 'a.txt'}"),
        (["-", file], "must be the only recording"),
        ([file, other, "--srt"], "--out DIR"),
        ([file, beside, "--out", str(tmp_path / "o")], "names differ in more than the extension"),
        ([file, *BEAM, "--n-best", "4"], "--n-best must be 1 to --beams (3), not 4"),
        ([str(tmp_path)], "is a folder; name a recording in it"),
        ([file, *BEAM, "--search", "greedy"], "needs --search modified"),
        ([file, *BEAM, "--srt"], "omit --raw and --srt"),
        ([file, "--beams", "9"], "--beams has no effect with --search greedy"),
        ([file, *BEAM, "--symbols-per-frame", "2"], "has no effect with --search modified"),
        ([file, "--out", file], f"--out: {file} is a file; name a folder"),
        ([file, "--window", "1e-5"], "the window (1e-05 s) must be at least a feature frame"),
        ([other, file, *BEAM, "--window", "1.5"], f"{file} is longer than a window of 1.5 s"),
        ([file, *BEAM, "--data.max_duration", "2"], "is longer than a window of 2 s"),
    ):
        assert message in refused(capsys, "transcribe", run, *words)
    for name, word in (("stdin", "-"), ("stdout", file)):
        with monkeypatch.context() as patch:
            patch.setattr(f"sys.{name}", None)
            line = refused(capsys, "transcribe", run, word)
        assert f"standard {name.removeprefix('std')}put" in line


def test_a_recording_without_sound(run: Path, capsys, monkeypatch, tmp_path: Path) -> None:
    """Its transcript is empty. If no recording has sound, the command fails."""
    for name, samples in (("none", 0), ("click", 40)):
        soundfile.write(tmp_path / f"{name}.wav", np.full(samples, 0.1), 8000)
    (tmp_path / "x.wav").write_bytes(b"nothing")
    bad = [str(tmp_path / f"{name}.wav") for name in ("none", "click", "x")]
    code, out, err = outcome(capsys, "transcribe", run, *bad)
    assert code == 2 and out.splitlines() == [f"{name}\t" for name in bad]
    assert "unreadable" in err and "no sound in 3 recordings" in err
    assert main(["transcribe", str(run), bad[0], str(run.parent / "b.wav")]) == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "no sound in standard input" in outcome(capsys, "transcribe", run, "-", "--raw")[2]


def test_subtitles_can_be_read_at_once() -> None:
    words = [Word("fish", 0.04, 0.52), Word("&", 0.6, 0.68), Word("chips", 3661.25, 3661.9996)]
    assert as_srt(words) == (
        "1\n00:00:00,040 --> 00:00:00,680\nfish &\n\n2\n01:01:01,250 --> 01:01:02,000\nchips\n"
    )
    assert as_srt([]) == ""
    long = [Word("abcdefghi", n * 0.1, n * 0.1 + 0.05) for n in range(20)]
    lines = as_srt(long).splitlines()[2::4]
    assert [line.count(" ") + 1 for line in lines] == [8, 8, 4]
    slow = [Word("a", n * 0.9, n * 0.9 + 0.7) for n in range(10)]
    assert [line.count("a") for line in as_srt(slow).splitlines()[2::4]] == [6, 4]


def test_splits_are_measured_written_kept_and_tabulated(run: Path, capsys, tmp_path: Path) -> None:
    words = ["--splits", "validation,train", "--write", str(tmp_path), "--keep", "greedy"]
    head, splits, *lines = printed(capsys, "evaluate", run, *words).splitlines()
    assert head.endswith("best:") and splits.split() == ["validation", "train"]
    assert next(line for line in lines if line.split()[0] == "wer").count(" ± ") == 2
    rows = [json.loads(row) for row in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and rows[0].keys() == {"id", "reference", "hypothesis"}
    kept = json.loads((run / "scores" / "greedy-train.json").read_text())
    assert kept["metrics"]["utterances"] == 12 and kept["weights"] == "best"
    said, heard = ([row[name] for row in rows] for name in ("reference", "hypothesis"))
    assert kept["metrics"]["words"] == sum(len(text.split()) for text in said)
    assert kept["metrics"]["wer_half_width"] == error_rate_half_width(said, heard)
    assert kept["manifest"] == json.loads((run / "best" / "manifest.json").read_text())
    for split in ("validation", "train"):  # names of two of the paper's sets
        other = {"validation": "dev-clean", "train": "test-other"}[split]
        (run / "scores" / f"greedy-{split}.json").rename(run / "scores" / f"greedy-{other}.json")
    out = printed(capsys, "table", run, "--preset", "librispeech", "--paper")
    head, own, *rows = out.split("\n\n")[0].splitlines()
    columns = ["dev-clean", "dev-other", "test-clean", "test-other", "validation"]
    assert head.split()[-5:] == columns and own.count(" ± ") == 2
    assert "Pre-LN, 18 layers (paper)" in rows[0] and "2.97" in rows[0].split()


def test_rates_of_normalised_texts(run: Path, capsys) -> None:
    pytest.importorskip("transformers")
    plain = answer(capsys, "evaluate", run)
    assert plain["utterances"] == 5 and plain["wer"] >= 0 and plain["search"] == "greedy"
    found = answer(capsys, "evaluate", run, "--normaliser", "whisper-english")
    assert found["wer"] == plain["wer"] and found["wer_normalised"] >= 0
    assert found["normaliser"].startswith("whisper-english (transformers ")


def test_options_of_the_search() -> None:
    for words, expected in (("--search modified --beams 5", ModifiedBeamSearch(width=5, count=3)),
                            ("--symbols-per-frame 2", GreedySearch(2))):  # fmt: skip
        assert search_of(parser().parse(["run", "a.wav", *words.split()]), 3) == expected


def test_an_evaluation_decodes_with_the_chosen_search(run: Path, capsys, monkeypatch) -> None:
    def begin(*_: object) -> None:
        raise ValueError("the modified search began")

    monkeypatch.setattr("magneto.speech.decoding.ModifiedBeamSearch.begin", begin)
    assert "search began" in refused(capsys, "evaluate", run, "--search", "modified")


def test_a_split_is_measured_whole_and_its_name_may_be_a_path(
    run: Path, capsys, tmp_path: Path
) -> None:
    """A recipe's limit and its names of splits apply to validation during training only."""
    for split in ("train", "dev"):
        folder = tmp_path / "k" / "data" / split
        wavs = [write(folder / f"{split}{n}.wav", sample_rate=8000) for n in range(3)]
        (folder / "wav.scp").write_text("".join(f"{w.stem} {w}\n" for w in wavs))
        (folder / "text").write_text("".join(f"{w.stem} one\n" for w in wavs))
    limited = tmp_path / "limited"
    shutil.copytree(run, limited)
    text = (limited / "recipe.yaml").read_text()
    assert "validation_limit: null" in text
    text = text.replace("validation_limit: null", "validation_limit: 2")
    text = text.replace("validation_splits: null", "validation_splits: [dev-clean]")
    (limited / "recipe.yaml").write_text(text)
    words = ["--data", str(tmp_path / "k"), "--splits", "data/dev", "--write", str(tmp_path / "o")]
    assert answer(capsys, "evaluate", limited, *words)["splits"]["data/dev"]["utterances"] == 3
    assert len((tmp_path / "o" / "data" / "dev.jsonl").read_text().splitlines()) == 3
    assert answer(capsys, "evaluate", limited, *words[:2])["utterances"] == 3
