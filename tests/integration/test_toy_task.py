"""A task of one's own, in a package outside of ours: its rows are compared, its mistakes are said.

Its model is no Transformer and its configuration has no placement. The guide's example of a task
is taken through every other command by tests/system/test_guide.py.
"""

import io
import sys
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.lab import sweep
from magneto.lab.grid import RATE, SEED, Cell, read_sweep
from tests.commands import answer, refused

PACKAGE = '''
"""Say whether more than half of the bits of a row are set."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from magneto.data.stream import LazyBatches, example_stream, shuffled
from magneto.fields import configuration
from magneto.training.task import Loss, Scores, Task


@configuration
class ToyModel:
    kernel: int = 3
    channels: int = 8


@configuration
class ToyData:
    source: str = "bits"
    rows: int = 256


class Convolution(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.inside = nn.Conv1d(1, config.channels, config.kernel, padding="same")
        self.head = nn.Linear(config.channels, 2)

    def forward(self, bits):
        return self.head(self.inside(bits[:, None]).relu().mean(-1))


class Toy(Task):
    primary_metric = "f1"
    higher_is_better = True
    unit = "rows"
    ModelConfig = ToyModel
    DataConfig = ToyData

    def rows(self, split):
        random = np.random.default_rng([len(self.data_config.source), split])
        bits = torch.from_numpy(random.integers(2, size=(self.data_config.rows, 9))).float()
        return bits, (bits.sum(1) > 4).long()

    def build_model(self):
        return Convolution(self.model_config)

    def train_stream(self, batch_size, seed):
        bits, labels = self.rows(0)
        plan = shuffled(len(bits), batch_size, seed)
        return example_stream(plan, lambda numbers, draws: (bits[numbers], labels[numbers]))

    def loss(self, model, batch):
        total = F.cross_entropy(model(batch[0]).float(), batch[1], reduction="sum")
        return Loss(total, torch.ones_like(batch[1]).sum())

    def validation_batches(self):
        bits, labels = self.rows(1)
        return LazyBatches(torch.arange(len(bits)).split(50), lambda n: (bits[n], labels[n]))

    def score(self, model, batch):
        answers = model(batch[0]).float()
        total = F.cross_entropy(answers, batch[1], reduction="sum")
        pairs = torch.stack((answers.argmax(-1), batch[1]))
        return Scores({"loss": total, "count": torch.ones_like(batch[1]).sum()}, pairs)

    def summarise(self, sums, predictions):
        given, known = torch.cat(list(predictions), 1).bool()
        f1 = 2 * (given & known).sum() / (given.sum() + known.sum()).clamp(min=1)
        return {"loss": sums["loss"] / sums["count"], "f1": float(f1)}

    def baseline(self, limit=None):
        labels = self.rows(1)[1].bool()
        return {"f1": float(2 * labels.sum() / (len(labels) + labels.sum()))}
'''
VARIANTS = """
class NoLoss(Toy):
    loss = Task.loss


class OtherMetric(Toy):
    primary_metric = "accuracy"


class Tensors(Toy):
    def summarise(self, sums, predictions):
        return {"loss": torch.tensor(sums["loss"]), "f1": torch.tensor(0.5)}

    def predict(self, model, inputs):
        return torch.tensor([[float(row["bit"])] for row in inputs])
"""
RECIPE = """
task: toy_package.task:Toy
model: {kernel: 3}
data: {rows: 256}
training:
  steps: 12
  batch_size: 32
  learning_rate: 0.01
  warmup_steps: 2
  log_every: 2
  evaluate_every: 6
  tensorboard: false
  device: cpu
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


def test_compare_without_placements(place: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sweep, "run_local", lambda folder, *rest: sweep.work(folder) >= 0)
    words = ["compare", place / "toy.yaml", "--lrs", "1e-2,3e-2", "--jobs", "1"]
    words += ["--grid", "model.kernel=1,3"]
    out = place / "comparison"
    found = answer(capsys, *words, "--out", out)
    assert found["complete"] and found["placements"] == ["kernel=1", "kernel=3"]
    assert found["metric"] == "f1" and len(found["summary"]) == 2
    assert all(cell.values.keys() >= {"model.kernel"} for cell in read_sweep(out).cells())
    assert "kernel=3" in (out / "report.html").read_text()
    assert Cell({RATE: 0.01, SEED: 1}).row == "Recipe"  # rates alone are compared


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
        PACKAGE.replace("channels: int = 8", "channels: int") + VARIANTS
    )
    words = ["train", place / "toy.yaml", "--out", place / "unfinished", "--task"]
    line = refused(capsys, *words, "toy_package.unfinished:NoLoss")
    assert line.endswith("task toy_package.unfinished:NoLoss must define loss")
    line = refused(capsys, *words, "toy_package.unfinished:Toy")
    assert "model.channels is missing" in line
    other = "toy_package.unfinished:OtherMetric"
    line = refused(capsys, *words, other, "--model.channels", "8")
    assert "'accuracy'" in line and "loss, f1" in line


def test_metrics_and_answers_may_be_tensors(place: Path, capsys, monkeypatch) -> None:
    (place / "toy_package" / "tensors.py").write_text(PACKAGE + VARIANTS)
    words = ["train", place / "toy.yaml", "--task", "toy_package.tensors:Tensors"]
    words += ["--training.epochs", "0.25", "--training.warmup_steps", "0"]
    assert answer(capsys, *words, "--out", place / "tensors")["metrics"]["f1"] == 0.5
    (place / "bits.csv").write_text("bit\n1\n0\n")
    for rows, given in (("bits.csv", ""), ("-", "bit\n1\n0\n"), ("-", '{"bit": 1}\n{"bit": 0}\n')):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert answer(capsys, "predict", place / "tensors", rows)["rows"] == [[1.0], [0.0]]
