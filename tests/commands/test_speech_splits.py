"""Splits of speech: `magneto table` measures them once, `magneto evaluate` by name."""

import json
import shutil
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.commands import table
from tests.speech.small_run import train_small
from tests.speech.wavs import write

pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    place = tmp_path_factory.mktemp("librispeech")
    return train_small(place / "run")


def test_it_measures_once(run: Path, capsys, monkeypatch) -> None:
    words = [
        "table",
        str(run),
        "--preset",
        "librispeech",
        "--splits",
        "validation,train",
        "--beams",
        "2",
        "--json",
    ]
    assert main([*words, "--search", "modified"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [score["column"] for score in first["best"]] == ["validation", "train"]
    kept = json.loads((run / "scores" / "train.json").read_text())
    assert kept["metrics"]["utterances"] == 12 and kept["weights"] in ("best", "final")

    def refuse(*given):
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr(table, "measure_split", refuse)
        assert main([*words, "--search", "modified"]) == 0
        assert json.loads(capsys.readouterr().out) == first
        with pytest.raises(AssertionError, match="measured again"):
            main(words)  # greedy is another number


def test_what_was_measured_counts_for_the_same_data_wherever_it_lies(
    run: Path, capsys, monkeypatch, tmp_path: Path
) -> None:
    def data(folder: Path, text: str) -> str:
        for name in ("dev-clean", "train-clean"):
            write(folder / "LibriSpeech" / name / "1" / "2" / "1-2-0.flac", sample_rate=8000)
            path = folder / "LibriSpeech" / name / "1" / "2" / "1-2.trans.txt"
            path.write_text(f"1-2-0 {text}\n")
        return str(folder / "LibriSpeech")

    counted = []
    plain = table.measure_split
    monkeypatch.setattr(
        table, "measure_split", lambda *given: counted.append(given) or plain(*given)
    )
    words = [
        "table",
        str(run),
        "--preset",
        "librispeech",
        "--splits",
        "dev-clean",
        "--json",
        "--data",
    ]
    for folder, text, times in (("a", "ONE", 1), ("b", "ONE", 1), ("a", "TWO", 2)):
        assert main([*words, data(tmp_path / folder, text)]) == 0
        capsys.readouterr()
        assert len(counted) == times
    assert str(tmp_path) not in (run / "scores" / "dev-clean.json").read_text()


def test_rows_of_the_paper_and_intervals_over_utterances(run: Path, capsys) -> None:
    words = ["table", str(run), "--preset", "librispeech", "--splits", "validation,train"]
    assert main([*words, "--paper"]) == 0
    head, own, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["validation", "train"] and own.count(" ± ") == 2
    assert "Pre-LN, 18 layers (paper)" in rows[0] and rows[0].split()[-2:] == ["2.97", "6.52"]


def test_evaluate_by_splits(run: Path, capsys, tmp_path: Path) -> None:
    words = ["evaluate", str(run), "--splits", "validation,train", "--write", str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "validation" in out and "train" in out
    rows = [json.loads(row) for row in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and rows[0].keys() == {"id", "reference", "hypothesis"}
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["utterances"] == 5 and found["wer"] >= 0 and found["search"] == "greedy"
    pytest.importorskip("transformers")
    words = ["evaluate", str(run), "--normaliser", "whisper-english"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "normalised by whisper-english (transformers " in out
    assert main([*words, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["wer"] == found["wer"] and found["normaliser"] is None
    assert f"{100 * scores['wer_normalised']:.2f}" in out.splitlines()[-1]
    assert scores["normaliser"].startswith("whisper-english (transformers ")
    assert main(["evaluate", str(run), "--normaliser", "wisper"]) == 2
    assert main(["evaluate", str(run), "--splits", "tests"]) == 2


def test_a_split_is_measured_whole_and_its_name_may_be_a_path(
    run: Path, capsys, tmp_path: Path
) -> None:
    """A recipe's limit is of what training validates on."""
    for split, count in (("train", 4), ("dev", 3)):
        folder = tmp_path / "k" / "data" / split
        wavs = [write(folder / f"{split}{n}.wav", sample_rate=8000) for n in range(count)]
        (folder / "wav.scp").write_text("".join(f"{w.stem} {w}\n" for w in wavs))
        (folder / "text").write_text("".join(f"{w.stem} one\n" for w in wavs))
    recipe = run / "recipe.yaml"
    limited = tmp_path / "limited"
    shutil.copytree(run, limited)
    assert "validation_limit: null" in recipe.read_text()
    text = recipe.read_text().replace("validation_limit: null", "validation_limit: 2")
    (limited / "recipe.yaml").write_text(text)
    words = ["evaluate", str(limited), "--data", str(tmp_path / "k"), "--splits", "data/dev"]
    assert main([*words, "--write", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["data/dev"]["utterances"] == 3
    assert len((tmp_path / "out" / "data" / "dev.jsonl").read_text().splitlines()) == 3
