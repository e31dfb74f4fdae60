"""A run that went wrong says so: what is not finite is no result."""

import json
import math
from pathlib import Path

import pytest
import torch

from magneto.config import ConfigError, build
from magneto.progress import ProgressBars
from magneto.tasks import command
from magneto.training.config import TrainingConfig
from magneto.training.loop import Hook, TrainingState, train
from magneto.weights import list_checkpoints
from tests.unit.training.toy import Toy, ToyData, config, run_toy


def break_weights(state: TrainingState) -> None:
    with torch.no_grad():
        state.parameters[0].fill_(float("inf"))


# The higher the better.
HIGHER = ToyData(wrong_way=True)


class UnseenWeight(Toy):
    """A task whose evaluation does not notice what its weights are."""

    def summarise(self, sums, predictions) -> dict[str, float]:
        return {"loss": 1.0}


class NoValidationLoss(Toy):
    """A task whose validation loss is not a number from the second evaluation on."""

    evaluations = 0

    def summarise(self, sums, predictions) -> dict[str, float]:
        self.evaluations += 1
        return {"loss": 1.0 if self.evaluations == 1 else float("nan")}


def test_a_validation_loss_that_is_no_number_is_divergence(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    result = train(NoValidationLoss(), config(clip_norm=None), tmp_path, seed=3)
    assert (result.status, result.diverged_at) == ("diverged", 20)
    assert "validation loss is nan" in result.reason
    assert not (tmp_path / "final").exists()
    last = capsys.readouterr().err.splitlines()[-1]
    for word in ("learning_rate", "warmup_steps", "clip_norm", "placement", "magneto probe"):
        assert word in last


class BetterByNoNumber(NoValidationLoss):
    """A task whose other metric grows as its validation loss stops being a number."""

    primary_metric = "sign"

    def summarise(self, sums, predictions) -> dict[str, float]:
        found = super().summarise(sums, predictions)
        return found | {"sign": 0.5 if found["loss"] == 1.0 else 1.0}


def test_what_has_no_validation_loss_is_never_the_best(tmp_path: Path) -> None:
    settings = config(average_checkpoints=2, average_by="best")
    report = ProgressBars(quiet=True)
    result = train(BetterByNoNumber(HIGHER), settings, tmp_path, seed=3, report=report)
    assert result.status == "diverged" and result.metrics["sign"] == 1.0
    assert result.best == {"step": 10, "value": 0.5}
    assert json.loads((tmp_path / "best" / "state.json").read_text())["step"] == 10
    assert [path.name for path in (tmp_path / "candidates").iterdir()] == ["step-00000010"]


class Scored(Toy):
    """A task whose three evaluations give these values of its metric."""

    primary_metric = "sign"
    values = (0.0,)

    def summarise(self, sums, predictions) -> dict[str, float]:
        first, *self.values = self.values
        return {"loss": 1.0, "sign": first}


@pytest.mark.parametrize(
    ("values", "best", "held"),
    [((0.5, 0.9, 0.7), 20, [10, 20, 30]), ((0.5, math.nan, 0.7), 30, [10, 30])],
)
def test_the_best_is_of_the_highest_metric_that_is_a_number(
    tmp_path: Path, values: tuple[float, ...], best: int, held: list[int]
) -> None:
    """Others are held beside it, for an average."""
    task, settings = (
        Scored(HIGHER),
        config(average_checkpoints=3, keep_checkpoints=3, average_by="best"),
    )
    task.values = values
    result = train(task, settings, tmp_path, seed=3, report=ProgressBars(quiet=True))
    assert result.status == "finished" and result.best["step"] == best
    assert json.loads((tmp_path / "best" / "state.json").read_text())["step"] == best
    found = sorted(path.name for path in (tmp_path / "candidates").iterdir())
    assert found == [f"step-{step:08d}" for step in held]


@pytest.mark.parametrize("at", [8, 30])
def test_weights_that_are_not_finite_are_divergence(tmp_path: Path, at: int) -> None:
    """Whether a checkpoint finds it, or the end."""
    task, settings = UnseenWeight(), config(save_every=4, log_every=30)
    hooks = [Hook(at, break_weights)]
    result = train(task, settings, tmp_path, seed=3, hooks=hooks, report=ProgressBars(quiet=True))
    assert (result.status, result.reason) == ("diverged", "the weights are not finite")
    assert result.diverged_at == at
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "diverged"
    assert f"step-{at:08d}" not in {path.name for path in list_checkpoints(tmp_path)}
    assert not (tmp_path / "final").exists()


def test_a_finished_run_is_still_finished(tmp_path: Path) -> None:
    assert run_toy(tmp_path).status == "finished"


def test_numbers_without_sense_are_named_all_at_once() -> None:
    wrong = {
        "learning_rate": "nan", "warmup_start": -1e-4, "final_learning_rate": "inf",
        "power": 0, "eps": 0, "betas": "0.9,1.5", "weight_decay": "nan", "clip_norm": "inf",
        "ema_decay": "nan", "epochs": "inf", "warmup_ratio": "nan", "divergence_ratio": "nan",
        "evaluate_limit": 0,
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        build(TrainingConfig, wrong, "training")
    lines = caught.value.lines
    assert len(lines) == len(wrong)
    assert all(
        any(f" {name} must be" in line for line in lines) for name in wrong if name != "betas"
    )
    assert "training: betas must be in [0, 1), not 0.9, 1.5" in lines


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_number_of_steps_is_finite(value: str) -> None:
    with pytest.raises(ConfigError, match="steps must be a whole number"):
        build(TrainingConfig, {"steps": value}, "training")


def test_a_finished_run_says_its_losses_its_best_step_and_what_is_next(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    result = train(Toy(), config(), tmp_path, seed=3)
    lines = capsys.readouterr().err.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("finished after"))
    assert f"{result.step} steps" in lines[at]
    last = f"validation loss {result.metrics['loss']:.4g}"
    assert lines[at + 1].startswith("training loss ") and lines[at + 1].endswith(last)
    best = result.best
    assert lines[at + 2] == f"best step {best['step']}: validation loss {best['value']:.4g}"
    assert lines[at + 3] == f"the run is in {tmp_path}; next:"
    assert lines[at + 4 :] == [f"  magneto evaluate {tmp_path}", f"  magneto report {tmp_path}"]
    run = Path("runs/a")
    assert command("evaluate --tasks SUITE", run) == "magneto evaluate runs/a --tasks SUITE"
    assert command("predict IMAGE", run) == "magneto predict runs/a IMAGE"
    trained = command("train image-modelling/tiny --data.image_tokenizer", run)
    assert trained == "magneto train image-modelling/tiny --data.image_tokenizer runs/a"


def test_lines_on_the_loss_stay(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    train(Toy(), config(steps=100, log_every=1), tmp_path, seed=3)
    lines = [line for line in capsys.readouterr().err.splitlines() if "learning rate" in line]
    assert [line.split(":")[0] for line in lines] == [f"step {5 * i}/100" for i in range(1, 21)]
    assert all("loss " in line and "/s" in line for line in lines)


def test_resuming_a_finished_run_says_so_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    first = train(Toy(), config(), tmp_path, seed=3)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert train(Toy(), config(), tmp_path, seed=3, resume=True) == first
    assert f"{tmp_path} finished at step {first.step} already" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
