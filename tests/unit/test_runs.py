"""A run is opened with what it was trained with, whatever has become of its text."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from magneto import tasks
from magneto.cli import main
from magneto.data.tokenizer import load_tokenizer
from magneto.files import write_json
from magneto.recipe import load_recipe, open_run
from magneto.runs import OpenRun, load_run, run_tokenizer, warn_unlearnt
from magneto.tasks import command
from magneto.training.logging import PLATEAU_FILE
from tests.recorded_progress import RecordedProgress
from tests.unit.training.toy import Moving, config

TRAINING = """--training.steps 2 --training.warmup_steps 1 --training.batch_size 4
--training.tensorboard false --training.device cpu --model.width 32 --model.heads 4
--model.ffn_width 48 --data.vocab_size 300""".split()  # noqa: SIM905
LAYERS = "--model.layers 1 --data.max_length 24"
TASKS = {
    "causal-lm": LAYERS,
    "text-classification": LAYERS,
    "translation": "--model.encoder_layers 1 --model.decoder_layers 1 --data.languages null "
    "--data.max_length 40 --data.max_tokens 256 --data.validation_limit null",
}


def write(task: str, source: Path, letters: str) -> None:
    """Write a text of words of those letters."""
    random.seed(letters)
    words = ["".join(random.choices(letters, k=4)) for _ in range(30)]
    texts = [" ".join(random.choices(words, k=6)) for _ in range(200)]
    if task == "translation":
        for language, step in (("en", 1), ("de", -1)):
            lines = (" ".join(text.split()[::step]) for text in texts)
            source.with_name(f"{source.name}.{language}").write_text("\n".join(lines) + "\n")
        return
    rows = [{"text": text, "label": ["no", "yes"][n % 2]} for n, text in enumerate(texts)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module", params=TASKS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text of a task and a run of two steps on it."""
    task, place = request.param, tmp_path_factory.mktemp("runs")
    source = place / ("text" if task == "translation" else "text.jsonl")
    write(task, source, "abcdef")
    words = ["train", f"{task}/tiny", "--data", str(source), "--out", str(place / "run")]
    with torch.enable_grad():
        assert main([*words, *TRAINING, *TASKS[task].split()]) == 0
    return place


@pytest.fixture
def run(trained: Path) -> Iterator[Path]:
    """The run; it and its text are brought back afterwards."""
    kept = trained.with_name(f"{trained.name}-kept")
    shutil.copytree(trained, kept)
    yield trained / "run"
    shutil.rmtree(trained)
    kept.rename(trained)


def source_of(run: Path) -> tuple[str, Path]:
    task = open_run(run).task
    return task, run.with_name("text" if task == "translation" else "text.jsonl")


def evaluate(run: Path, capsys: pytest.CaptureFixture) -> str:
    """Evaluate a run on its own data; return the messages."""
    limit = ["--beams", "1", "--longest", "4"] if open_run(run).task == "translation" else []
    capsys.readouterr()
    assert main(["evaluate", str(run), "--limit", "2", *limit]) == 0
    return capsys.readouterr().err


def test_a_changed_text_changes_no_tokenizer(run: Path, capsys: pytest.CaptureFixture) -> None:
    (task, source), kept = source_of(run), run / "assets" / "tokenizer"
    content = {path.name: path.read_bytes() for path in kept.iterdir()}
    pieces = load_tokenizer(kept).pieces()
    write(task, source, "uvwxyz")
    recipe = (run / "recipe.yaml").read_bytes()
    capsys.readouterr()
    resume = ["train", "--resume", str(run), "--training.steps", "4"]
    assert main(resume) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("magneto:")]
    assert len(lines) == 1 and f"{kept} does not match" in lines[0]
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == content
    assert (run / "recipe.yaml").read_bytes() == recipe
    assert main([*resume, "--data.tokenizer", str(kept)]) == 2
    assert f"{run / 'assets' / 'data.digest'} does not match" in capsys.readouterr().err

    opened: Any = load_run(run, "auto", {"training.device": "cpu"})
    opened.task.prepare()
    tokenizer = (opened.task.vocabulary if task == "translation" else opened.task).tokenizer
    assert tokenizer.pieces() == pieces
    assert f"the data has changed since {run} was trained" in evaluate(run, capsys)
    for path in run.parent.glob("text*"):
        path.unlink()
    out = run.with_name("hf")
    assert main(["export", str(run), str(out)]) == 0
    assert load_tokenizer(out).pieces()[: len(pieces)] == pieces


def test_a_run_that_lost_what_its_data_told_gets_nothing_else(run: Path) -> None:
    """A tokenizer was learned anew from whatever the text was, and it wrote wrong words."""
    dropped = load_run(run, "final", {"model.dropout": 0.5}).model
    assert not any(module.training for module in dropped.modules())
    shutil.rmtree(run / "assets" / "tokenizer")
    with pytest.raises(FileNotFoundError, match="tokenizer is missing"):
        load_run(run, "auto", {})
    shutil.rmtree(run / "assets")
    with pytest.raises(FileNotFoundError, match=r"resolved.json is missing"):
        load_run(run, "auto", {})


def test_a_text_may_move(run: Path, capsys: pytest.CaptureFixture) -> None:
    whole, (_, source) = run.with_name("whole"), source_of(run)
    shutil.copytree(run, whole)
    again = ["--training.steps", "4"]
    with torch.enable_grad():
        assert main(["train", "--resume", str(whole), *again]) == 0
        (run.parent / "moved").mkdir()
        for path in run.parent.glob("text*"):
            path.rename(run.parent / "moved" / path.name)
        moved = str(run.parent / "moved" / source.name)
        assert main(["train", "--resume", str(run), "--data", moved, *again]) == 0
    for name in ("final/model.safetensors", "assets/data.digest"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert "changed" not in evaluate(run, capsys)


VERBS = {
    "generate": {"causal-lm", "image-captioning"},
    "translate": {"translation"},
    "search": {"image-text-retrieval"},
    "transcribe": {"transducer"},
    "predict": {"text-classification", "image-classification", "segmentation",
                "visual-question-answering", "visual-reasoning"},
    "evaluate --tasks": {"causal-lm"},
    "evaluate --features": {"image-classification", "image-modelling"},
}  # fmt: skip


def test_another_tasks_verb_is_one_line_that_names_the_right_one(tmp_path: Path, capsys) -> None:
    more = {"translate": ["--to", "de"], "search": ["x", "."], "transcribe": [__file__],
            "evaluate --tasks": ["piqa"]}  # fmt: skip
    for task in tasks.TASKS:
        load_recipe(f"{task}/tiny").save(tmp_path / "recipe.yaml")
        right = [f"magneto {verb.split()[0]} {tmp_path}" for verb in VERBS if task in VERBS[verb]]
        for verb in (verb for verb in VERBS if task not in VERBS[verb]):
            first, *rest = verb.split()
            assert main([first, str(tmp_path), *rest, *more.get(verb, [])]) == 2
            line, *none = capsys.readouterr().err.splitlines()
            assert f"does not support {task}" in line and not none
            assert line.endswith(command("evaluate", tmp_path))
            assert all(name in line for name in right), line


def test_an_open_run_is_evaluated_on_some_batches_with_its_companion(tmp_path: Path) -> None:
    recipe: Any = SimpleNamespace(training=config())
    opened = OpenRun(recipe, task := Moving(), task.build_model().eval(), tmp_path)
    assert len(opened.evaluate(limit=2).predictions) == 2 < len(opened.evaluate().predictions)
    assert not task.teacher.training and not task.teacher.weight.requires_grad


def test_a_run_without_a_text_has_no_tokenizer(tmp_path: Path) -> None:
    load_recipe("image-classification/tiny").save(tmp_path / "recipe.yaml")
    held = {"values": {"model.classes": 2}, "files": {}}
    write_json(tmp_path / "assets" / "resolved.json", held)
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        run_tokenizer(tmp_path)


def test_an_encoder_at_its_plateau_is_remarked_on(tmp_path: Path) -> None:
    def said_of(name: str, loss: float, accuracy: float = 0.5, plateau: bool = True) -> list[str]:
        run, progress = tmp_path / name, RecordedProgress()
        run.mkdir()
        write_json(run / "result.json", {"metrics": {"loss": loss, "accuracy": accuracy}})
        if plateau:
            write_json(run / PLATEAU_FILE, {"loss": 6.0, "accuracy": 0.5})
        warn_unlearnt(run, progress)
        return progress.lines

    assert said_of("b", 5.5) == said_of("c", 5.95, plateau=False) == []
    assert said_of("d", 7.0, accuracy=0.8) == [], "overconfident and mostly right, so it has learnt"
    warn_unlearnt(tmp_path / "none", RecordedProgress())
    (line,) = said_of("a", 5.95)
    assert (
        "hardly better than its unigram" in line and "5.95" in line and str(tmp_path / "a") in line
    )
