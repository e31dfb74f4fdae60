"""Every task's tiny recipe trains, and its printed next commands run."""

import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from magneto.cli import command_parser, main
from magneto.recipe import load_recipe, open_run
from magneto.tasks import TASKS
from magneto.training.logging import read_metrics
from magneto.training.model import count_flops
from tests.shrunken import draw_few, shrunken

Image = pytest.importorskip("PIL.Image")
SMALL = {
    "model.width": 16, "model.layers": 1, "model.heads": 2, "model.ffn_width": 16,
    "training.steps": 2, "training.batch_size": 4, "training.warmup_steps": 1,
    "training.device": "cpu", "training.tensorboard": False, "training.evaluate_limit": 1,
}  # fmt: skip
# Captions and translations of a model that learned nothing end at the length that it is allowed.
# Batches of translation and of a transducer count groups.
SHORT = {"image-captioning": {"model.max_length": 24}, "translation": {"training.batch_size": 1},
         "transducer": {"training.batch_size": 1, "data.max_frames": 200,
                        "data.max_duration": 2.0}}  # fmt: skip
# What makes commands quick that are long otherwise.
MORE = {
    "evaluate": ["--limit", "1"],
    "evaluate translation": ["--limit", "1", "--longest", "4", "--beams", "1"],
    "generate": ["--new-tokens", "3"],
    "generate image-captioning": ["--beams", "1"],
    "translate": ["--longest", "4", "--beams", "1"],
    "train": """--training.steps 1 --training.warmup_steps 0 --training.batch_size 4
    --training.evaluate_limit 1 --model.width 16 --model.layers 1 --model.codes 8
    --out further""".split(),  # noqa: SIM905
}
QUESTION = {"sentence": "Ann saw Eve since _ was late.", "option1": "Ann", "option2": "Eve",
            "answer": "1"}  # fmt: skip


def folder_of_images(place: Path) -> str:
    """Return a folder with an image."""
    (place / "images").mkdir(exist_ok=True)
    Image.new("RGB", (48, 48), "blue").save(place / "images" / "blue.png")
    return str(place / "images")


def fill(word: str, place: Path) -> list[str]:
    """Return the words that replace a placeholder in capitals."""
    if word in ("IMAGE", "LEFT", "RIGHT"):
        Image.new("RGB", (48, 48), "red").save(place / "red.png")
        return [str(place / "red.png")]
    if word == "RECORDING":
        soundfile = pytest.importorskip("soundfile")
        sound = 0.1 * np.random.default_rng(0).standard_normal(4000)
        soundfile.write(place / "noise.wav", sound, 8000)
        return [str(place / "noise.wav")]
    if word == "SUITE":
        (place / "winogrande_dev.jsonl").write_text(json.dumps(QUESTION) + "\n")
        return ["winogrande", "--data", str(place), "--seeds", "1"]
    return [{"LANGUAGE": "de", "QUESTION": "is it red?", "STATEMENT": "both are red",
             "TEXT": "a red square", "FOLDER": folder_of_images(place)}[word]]  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_next_commands_are_run(task: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw_few(monkeypatch)
    changes = SMALL | shrunken(task, tmp_path) | SHORT.get(task, {})
    recipe, run = load_recipe(f"{task}/tiny", changes), tmp_path / "a run"
    recipe.save(tmp_path / "mine.yaml")
    with monkeypatch.context() as patch:  # operations are counted, as outside of tests
        patch.setattr("magneto.training.loop.count_flops", count_flops)
        patch.setattr("magneto.training.loop.peak_flops", lambda *_: 1e12)
        assert main(["train", str(tmp_path / "mine.yaml"), "--out", str(run)]) == 0
    assert open_run(run).to_mapping() == recipe.to_mapping()
    assert all(0 < row["flops_utilisation"] < 10 for row in read_metrics(run) if "loss" in row)
    lines = capsys.readouterr().err.splitlines()
    named = lines[next(n for n, line in enumerate(lines) if line.endswith("next:")) + 1 :]
    assert len(named) == 2 + len(TASKS[task].verbs)
    for line in named:
        _, *words = shlex.split(line)
        words = [made for word in words
                 for made in (fill(word, tmp_path) if word.isupper() else [word])]  # fmt: skip
        if words[0] == "report":  # the pictures of each task have tests of their own
            command_parser("report").parse(words[1:])
            continue
        stdin = io.TextIOWrapper(io.BytesIO(b"a line\n"))
        monkeypatch.setattr("sys.stdin", stdin)
        more = MORE.get(f"{words[0]} {task}", MORE.get(words[0], []))
        assert main([*words, *more]) == 0, line
