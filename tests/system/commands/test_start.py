"""`magneto start`: its output is right, and the printed command trains."""

import shlex
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from magneto.cli import main
from magneto.commands import start
from magneto.commands.start import name_of
from magneto.language.causal_lm import CausalLanguageModeling
from magneto.language.masked_lm import MaskedLanguageModeling
from magneto.recipe import Recipe
from magneto.training.task import Task
from tests.commands import answer, outcome, printed, refused

SMALL = ["--training.steps", "2", "--model.layers", "1", "--model.width", "32",
         "--training.batch_size", "16"]  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of classes with 30 grey images of 16 x 16."""
    folder = tmp_path_factory.mktemp("digits")
    values, labels = load_digits(return_X_y=True)
    chosen = [n for digit in range(3) for n in (labels == digit).nonzero()[0][:30]]
    for number in chosen:
        path = folder / str(labels[number]) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        grey = Image.fromarray((values[number].reshape(8, 8) * 15).astype("uint8"))
        grey.resize((16, 16)).save(path)
    return folder


def test_from_images_to_a_run(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "run"
    given = ["--model.patch_size", "8", "--model.grid_positions", "relative_bias"]
    found = answer(capsys, "start", digits, "--out", out, *SMALL, *given)
    assert found["task"] == "image-classification" and found["steps"] == 2
    assert found["options"]["model.image_size"] == 16 and found["options"]["model.channels"] == 1
    assert found["options"]["model.max_length"] == 4, "the patches of the given size"
    assert found["facts"]["classes"].startswith("3: ")
    assert found["simple"]["logistic regression on pixels"]["accuracy"] > 0.8
    assert found["simple"]["the most frequent answer"]["accuracy"] < 0.5
    assert main(shlex.split(found["command"])[1:]) == 0
    assert (out / "final").exists()


def test_a_run_is_called_by_its_data(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "photos")
    names = {".": "photos", "..": tmp_path.name, "cat/": "cat", "../rows.csv.gz": "rows",
             "hf:beans": "hf-beans", "hf:some/beans::test": "beans--test"}  # fmt: skip
    assert {given: name_of(given) for given in names} == names


def test_text_for_people(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = tmp_path / "reviews.csv"
    rows = [f"this was {['bad', 'good'][n % 2]} number {n},{n % 2}" for n in range(60)]
    source.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    output = printed(capsys, "start", source, "--training.steps", "2")
    assert "texts in text, labels in label -> text-classification" in output
    # Both words tell the classes; three of four validation rows have the rarer class.
    for line in ("  classes                       2: 0 29, 1 27",
                 "  the most frequent answer      0.25, loss 0.711",
                 "  logistic regression on words  1"):  # fmt: skip
        assert line in output.splitlines()
    assert "magneto train text-classification/start --data" in output


def test_a_task_can_be_chosen(tmp_path: Path, capsys, monkeypatch) -> None:
    source, tried, trained = tmp_path / "a book.txt", [], list[list[str]]()
    source.write_text("\n\n".join(f"Number {n}. " * 20 for n in range(80)))

    def try_steps(recipe: Recipe, task: Task, progress: object) -> dict[str, float]:
        tried.append((recipe.task, type(task)))
        return {"parameters": 1234, "steps": 2, "seconds": 150.0}

    monkeypatch.setattr(start, "try_steps", try_steps)
    tasks = {"causal-lm": CausalLanguageModeling, "masked-lm": MaskedLanguageModeling}
    for task, other in zip(tasks, reversed(tasks), strict=True):
        lines = printed(capsys, "start", source, "--as", task).splitlines()
        assert tried == [(task, tasks[task])]
        assert lines[0] == f"{source}: a book.txt is text -> {task}"
        for line in (f"recipe               {task}/start",
                     "cost                 1,234 parameters, 2 steps, about 2:30 on this device",
                     f"for another task: magneto start '{source}' --as {other}"):  # fmt: skip
            assert line in lines
        (line,) = (line for line in lines if line.startswith(f"  magneto train {task}/start --da"))
        monkeypatch.setattr(start.train, "main", lambda words: trained.append(words) or 3)
        given = ("start", source, "--as", task, "--go", "--out", tmp_path / "run")
        assert outcome(capsys, *given)[0] == 3
        (words,) = trained
        assert words == [*shlex.split(line)[2:-1], str(tmp_path / "run")] and str(source) in words
        trained.clear()
        tried.clear()


def test_mistakes(digits: Path, capsys: pytest.CaptureFixture) -> None:
    for words, expected in (
        ([f"{digits}s"], "no file or folder"),
        ([str(digits), "--as", "causal-lm"], "suits only image-classification"),
        ([str(digits), "--model.widht", "3"], "did you mean model.width?"),
        ([str(digits), "--task", "segmentation"], "--task: use --as TASK"),
        ([str(digits), "--data.source", "x"], "--data.source: use the argument DATA"),
        ([str(digits), "--go", "--out", str(digits)], "already exists and is not empty"),
    ):
        assert expected in refused(capsys, "start", *words)
