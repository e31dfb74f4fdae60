"""A run that went wrong says so: what is not finite is no result."""

import json
from pathlib import Path

import pytest
import torch

from magneto.config import ConfigError, build
from magneto.progress import ProgressBars
from magneto.training.config import TrainingConfig
from magneto.training.hooks import Hook
from magneto.training.loop import train
from magneto.training.state import TrainingState
from magneto.weights import list_checkpoints
from tests.training.toy import Toy, config, run_toy


def break_weights(state: TrainingState) -> None:
    with torch.no_grad():
        state.parameters[0].fill_(float("inf"))


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
