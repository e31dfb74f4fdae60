"""`magneto librispeech`: the paper's table from runs; and `magneto evaluate` by splits."""

import json
import shutil
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.commands import librispeech
from magneto.commands.librispeech import table
from tests.speech.small_run import train_small
from tests.speech.wavs import write

pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    place = tmp_path_factory.mktemp("librispeech")
    return train_small(place / "run")


def test_it_measures_once(run: Path, capsys, monkeypatch) -> None:
    words = ["librispeech", str(run), "--splits", "validation,train", "--beams", "2", "--json"]
    assert main([*words, "--search", "modified"]) == 0
    first = json.loads(capsys.readouterr().out)
    scores = first["runs"][0]["splits"]
    assert scores["validation"]["utterances"] == 5 and scores["train"]["utterances"] == 12

    def refuse(*given):
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr(librispeech, "measure_split", refuse)
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
    plain = librispeech.measure_split
    monkeypatch.setattr(
        librispeech, "measure_split", lambda *given: counted.append(given) or plain(*given)
    )
    words = ["librispeech", str(run), "--splits", "dev-clean", "--json", "--data"]
    for folder, text, times in (("a", "ONE", 1), ("b", "ONE", 1), ("a", "TWO", 2)):
        assert main([*words, data(tmp_path / folder, text)]) == 0
        capsys.readouterr()
        assert len(counted) == times
    assert str(tmp_path) not in (run / "librispeech.json").read_text()


def result(placement: str, layers: int, seed: int, *rates: float) -> dict:
    splits = zip(librispeech.SPLITS, rates, strict=True)
    scores = {name: {"wer": rate, "wer_half_width": 0.001} for name, rate in splits}
    return {"placement": placement, "layers": layers, "rate": 3e-3, "seed": seed, "splits": scores}


def test_a_row_per_placement_and_depth() -> None:
    found = [
        result("Sub-LN", 36, 1, 0.024, 0.053, 0.027, 0.055),
        result("Pre-LN", 18, 1, 0.030, 0.065, 0.032, 0.066),
        result("Pre-LN", 18, 2, 0.030, 0.067, 0.032, 0.066),
    ]
    lines = table(found, librispeech.SPLITS, paper=True)
    assert lines[0] == ["", "layers", "rate", "runs", *librispeech.SPLITS]
    assert lines[1][:5] == ["Pre-LN", "18", "0.003", "2", "3.00"]
    assert lines[1][5].startswith("6.60 ± 1.27")
    assert lines[2] == ["Sub-LN", "36", "0.003", "1", "2.40 ± 0.10", "5.30 ± 0.10", "2.70 ± 0.10",
                        "5.50 ± 0.10"]  # fmt: skip
    assert lines[3] == ["Pre-LN (paper)", "18", "", "1", "2.97", "6.52", "3.19", "6.62"]


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


def test_runs_of_one_row_are_seeds_of_one_recipe(run: Path, capsys, tmp_path: Path) -> None:
    text = (run / "recipe.yaml").read_text()
    for old, new, said in (
        ("seed: 1", "seed: 1", "their seed is the same, 1"),
        ("seed: 1", "seed: 2", ""),
        ("width: 16", "width: 24", "model.width is"),
        ("steps: 2", "steps: 9", "training.steps is"),
    ):
        other = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(run, other)
        assert old in text
        changed = text.replace("seed: 1", "seed: 2") if new != "seed: 1" else text
        (other / "recipe.yaml").write_text(changed.replace(old, new, 1))
        words = ["librispeech", str(run), str(other), "--splits", "validation"]
        assert main(words) == (2 if said else 0)
        assert said in capsys.readouterr().err
