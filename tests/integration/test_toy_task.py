"""A task of one's own, in a package outside of ours: its rows are compared, its mistakes are said.

Its model is not a Transformer and its configuration has no placement. The guide's example of a task
is taken through every other command by tests/system/test_guide.py.
"""

import io
import sys
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.lab import sweep
from magneto.lab.grid import RATE, SEED, Cell, read_sweep
from tests.commands import answer, printed, refused

PACKAGE = """
from torch import nn

from magneto.fields import configuration
from magneto.training.task import Task
from tests.unit.training import toy


@configuration
class ToyModel:
    hidden: int = 8


class Toy(toy.Toy):
    primary_metric = "sign"
    ModelConfig = ToyModel

    def __init__(self, model, data, seed):
        super().__init__(data, seed)
        self.model_config, self.higher_is_better = model, True

    def build_model(self):
        hidden = self.model_config.hidden
        return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def baseline(self, limit=None):
        share = (self.set[1] > 0).float().mean().item()
        return {"sign": max(share, 1 - share)}
"""
VARIANTS = """
import torch


class NoLoss(Toy):
    loss = Task.loss


class OtherMetric(Toy):
    primary_metric = "accuracy"


class Tensors(Toy):
    def summarise(self, sums, predictions):
        return {"loss": torch.tensor(sums["error"]), "sign": torch.tensor(0.5)}

    def predict(self, model, inputs):
        return torch.tensor([[float(row["bit"])] for row in inputs])
"""
RECIPE = """
task: toy_package.task:Toy
data: {examples: 256}
training: {steps: 12, batch_size: 32, learning_rate: 0.01, warmup_steps: 2, log_every: 2,
  evaluate_every: 6, tensorboard: false, device: cpu}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy_package").mkdir()
    (folder / "toy_package" / "__init__.py").touch()
    (folder / "toy_package" / "task.py").write_text(PACKAGE)
    (folder / "toy.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(autouse=True)
def importable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        assert main(["train", str(place / "toy.yaml"), "--out", str(place / "run")]) == 0
    return place / "run"


def test_compare_without_placements(place: Path, capsys, monkeypatch, without_pdf) -> None:
    monkeypatch.setattr(sweep, "run_local", lambda folder, *rest: sweep.work(folder) >= 0)
    words = ["compare", place / "toy.yaml", "--lrs", "1e-2,3e-2", "--jobs", "1"]
    words += ["--grid", "model.hidden=4,8"]
    out = place / "comparison"
    found = answer(capsys, *words, "--out", out)
    assert found["complete"] and found["placements"] == ["hidden=4", "hidden=8"]
    assert found["metric"] == "sign" and len(found["summary"]) == 2
    assert all(cell.values.keys() >= {"model.hidden"} for cell in read_sweep(out).cells())
    assert "hidden=8" in (out / "report.html").read_text()
    assert Cell({RATE: 0.01, SEED: 1}).row == "Recipe"  # rates alone are compared
    lines = printed(capsys, *words, "--out", out).splitlines()
    assert lines[-2:] == ["next commands:", f"  magneto evaluate {out / 'best'}"]


def test_mistakes_are_one_line(run: Path, place: Path, capsys) -> None:
    recipe = place / "toy.yaml"
    line = refused(capsys, "compare", recipe, "--placements", "pre,sub")
    assert "has no norm placement" in line
    assert not (place / "runs").exists()
    assert "unknown key model.placement" in refused(capsys, "probe", recipe, "--placements", "sub")
    assert "no encoder or decoder stack" in refused(capsys, "probe", recipe)
    assert "no norm placement" in refused(capsys, "probe", recipe, "--depths", "2,4")
    line = refused(capsys, "train", recipe, "--probe-every", "2", "--out", place / "probed")
    assert "no encoder or decoder stack" in line
    for verb in (["generate", run, "x"], ["translate", run], ["evaluate", run, "--tasks", "x"]):
        line = refused(capsys, *verb)
        assert "does not support toy_package.task:Toy" in line
        assert f"use magneto evaluate {run}" in line
    assert "toy_package" in sys.modules


def test_what_an_unfinished_task_lacks_is_said(place: Path, capsys) -> None:
    (place / "toy_package" / "unfinished.py").write_text(
        PACKAGE.replace("hidden: int = 8", "hidden: int") + VARIANTS
    )
    words = ["train", place / "toy.yaml", "--out", place / "unfinished", "--task"]
    line = refused(capsys, *words, "toy_package.unfinished:NoLoss")
    assert line.endswith("task toy_package.unfinished:NoLoss must define loss")
    line = refused(capsys, *words, "toy_package.unfinished:Toy")
    assert "model.hidden is missing" in line
    other = "toy_package.unfinished:OtherMetric"
    line = refused(capsys, *words, other, "--model.hidden", "8")
    assert "'accuracy'" in line and "loss, sign" in line


def test_metrics_and_answers_may_be_tensors(place: Path, capsys, monkeypatch) -> None:
    (place / "toy_package" / "tensors.py").write_text(PACKAGE + VARIANTS)
    words = ["train", place / "toy.yaml", "--task", "toy_package.tensors:Tensors"]
    words += ["--training.steps", "2", "--training.warmup_steps", "0"]
    assert answer(capsys, *words, "--out", place / "tensors")["metrics"]["sign"] == 0.5
    monkeypatch.setattr("magneto.commands.predict.SORTED", 2)
    (place / "bits.csv").write_text("bit\n1\n0\n")
    (place / "more.csv").write_text("bit\n0\n0\n1\n")
    found = answer(capsys, "predict", place / "tensors", "bits.csv", "more.csv")["rows"]
    assert found == [[1.0], [0.0], [0.0], [0.0], [1.0]]
    line = refused(capsys, "predict", place / "tensors", "bits.csv", "--model.hidden", "4")
    assert "has weights of another model" in line
    for rows, given in (("bits.csv", ""), ("-", "bit\n1\n0\n"), ("-", '{"bit": 1}\n{"bit": 0}\n')):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert answer(capsys, "predict", place / "tensors", rows)["rows"] == [[1.0], [0.0]]
    for given, message in ((b"", "is empty"), (b"bit\n1\n\nx\n", ", row 4: ")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        line = refused(capsys, "predict", place / "tensors", "-")
        assert line.startswith("magneto: ") and f"{message}" in line and "/stdin" not in line
    (place / "bits.csv").write_text("bit\n1\n\nx\n")
    assert "bits.csv, row 4: " in refused(capsys, "predict", place / "tensors", "bits.csv")
