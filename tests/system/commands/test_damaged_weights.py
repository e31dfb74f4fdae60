"""Every command reads the weights asked for and checks them; one flipped bit is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from magneto.cli import main
from magneto.files import fingerprint
from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, Recipe, load_recipe
from magneto.training.loop import Hook, TrainingState, train
from magneto.training.task import ASSETS
from tests.commands import outcome, refused
from tests.shards import write_lines
from tests.system.conftest import SMALL
from tests.unit.training.toy import Toy, config, flip_a_bit
from tests.unit.vision.image_files import write


def test_no_command_uses_damaged_weights(language_run: Path, tmp_path: Path, capsys) -> None:
    """Neither with a flipped bit, nor with numbers that are not finite."""
    pytest.importorskip("transformers")
    run, out, exported = (tmp_path / name for name in ("run", "out", "exported"))
    shutil.copytree(language_run, run)
    assert main(["export", str(run), str(exported)]) == 0
    file, manifest = run / "best" / "model.safetensors", run / "best" / "manifest.json"
    whole = file.read_bytes()
    commands = (["evaluate", run], ["export", run, out], ["generate", run, "hello"])
    flip_a_bit(file)
    for words in commands:
        line = refused(capsys, *words)
        assert f"{file} is damaged" in line
        assert "undamaged weights: final, 6, 4 (give --weights final" in line
    assert main(["evaluate", str(run), "--weights", "final", "--limit", "1"]) == 0
    file.write_bytes(whole)
    for path in (file, exported / file.name):
        spoil(path)
    written = json.loads(manifest.read_text()) | {file.name: fingerprint(file)}
    manifest.write_text(json.dumps(written))
    for words in (*commands, ["convert", exported, out]):
        line = refused(capsys, *words)
        assert "2 of " in line and "decoder.final_norm.weight are not finite" in line
    assert not out.exists()


@pytest.mark.usefixtures("without_rendering")
@pytest.mark.parametrize(("recipe", "words"), [
    ("causal-lm", "evaluate RUN"),
    ("causal-lm", "evaluate RUN --tasks winogrande --data FOLDER/winogrande_dev.jsonl"),
    ("causal-lm", "generate RUN hello"),
    ("causal-lm", "export RUN out"),
    ("image-captioning", "generate RUN FOLDER/a.png"),
    ("image-classification", "evaluate RUN --features"),
    ("image-classification", "predict RUN FOLDER/a.png"),
    ("image-classification", "report RUN"),
    ("image-text-retrieval", "search RUN hello FOLDER"),
    ("text-classification", "predict RUN FOLDER/a.txt"),
    ("transducer", "transcribe RUN FOLDER/a.wav"),
    ("translation", "evaluate RUN --data.source FOLDER/pairs.jsonl"),
    ("translation", "translate RUN --to de"),
])  # fmt: skip
def test_every_command_takes_the_weights_and_the_settings_that_are_asked_for(
    recipe: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("transformers")
    run, folder = tmp_path / "run", tmp_path / "folder"
    load_recipe(f"{recipe}/tiny", {"training.device": "cpu"}).save(run / RUN_FILE)
    write(run / ASSETS / "resolved.json", b'{"values": {}, "files": {}}')
    for name in ("a.png", "a.txt", "a.wav"):
        write(folder / name, b"not read")
    question = {"sentence": "Ann saw Eve since _ was late.", "option1": "Ann", "option2": "Eve"}
    write_lines(folder / "pairs.jsonl", [{"de": "eins", "en": "one"}] * 2)
    write_lines(folder / "winogrande_dev.jsonl", [question | {"answer": "1"}])
    asked: list[tuple[str, int]] = []

    def load_model(run: Path, which: str, recipe: Recipe, task: object) -> None:
        asked.append((which, recipe.training.batch_size))
        raise FileNotFoundError("no such weights")

    monkeypatch.setattr("magneto.runs.load_model", load_model)
    monkeypatch.setattr("magneto.commands.report.load_model", load_model)
    own = load_recipe(f"{recipe}/tiny").training.batch_size
    takes_settings = not words.startswith(("generate", "export"))
    settings = ["--training.batch_size", own + 1] * takes_settings
    words = words.replace("RUN", str(run)).replace("FOLDER", str(folder))
    _, _, err = outcome(capsys, *words.split(), "--weights", "averaged", *settings)
    assert asked == [("averaged", own + takes_settings)] and "no such weights" in err, err


def spoil(path: Path) -> None:
    """Write a NaN and an infinity into the final norm."""
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("decoder.final_norm.weight"))
    tensors[name][:2] = torch.tensor([float("nan"), float("inf")])
    save_file(tensors, path, metadata={"format": "pt"})


def test_nobody_begins_with_weights_with_a_flipped_bit(book: Path, tmp_path, capsys) -> None:
    run, out = tmp_path / "run", tmp_path / "fine"
    assert main(["train", "masked-lm/tiny", "--data", str(book), *SMALL, "--out", str(run)]) == 0
    flip_a_bit(run / "best" / "model.safetensors")
    words = ["train", "text-classification/tiny", "--model.pretrained", run, *SMALL[:8]]
    line = refused(capsys, *words, "--training.steps", "1", "--out", out)
    assert "model.safetensors is damaged" in line and "undamaged weights: final" in line
    assert not out.exists()


@pytest.mark.parametrize(("by", "folder"), [("best", "candidates"), ("last", "checkpoints")])
def test_a_damaged_checkpoint_is_left_out_of_the_average(
    by: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def damage(state: TrainingState) -> None:
        if state.step == 25:
            flip_a_bit(tmp_path / folder / "step-00000010" / "model.safetensors")

    settings = config(
        average_checkpoints=2, average_by=by, evaluate_every=10, steps=29, save_every=10,
        keep_checkpoints=3,
    )  # fmt: skip
    if by == "last":
        settings = replace(settings, average_checkpoints=3)
    task = Toy()
    task.higher_is_better = True  # so that the first evaluations stay the best
    train(task, settings, tmp_path, seed=3, hooks=[Hook(1, damage)], report=ProgressBars())
    assert "damaged weights excluded from the average" in capsys.readouterr().err
    averaged = json.loads((tmp_path / "averaged" / "state.json").read_text())["average_of"]
    names = sorted(path.name for path in (tmp_path / folder).iterdir())
    assert averaged == [name for name in names if name[-2:] != "10"]
    kept = [load_file(tmp_path / folder / name / "model.safetensors") for name in averaged]
    mean = load_file(tmp_path / "averaged" / "model.safetensors")
    assert all(
        torch.allclose(mean[name], torch.stack([held[name] for held in kept]).mean(0), atol=1e-7)
        for name in mean
    )
