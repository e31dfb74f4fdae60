"""Curves go to TensorBoard in groups, and to Weights & Biases if it is asked for by a word."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magneto.cli import main
from magneto.training.logging import WANDB_FILE, TensorBoard, flatten, grouped
from magneto.training.loop import train
from tests.unit.training.toy import Toy, config


class StandIn:
    """What is used of the package wandb; keeps what it was told."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = 0

    def init(self, **words: Any) -> SimpleNamespace:
        self.begun.append(words)
        return SimpleNamespace(
            id=words["id"] or "abc",
            log=lambda values, step: self.logged.append((values, step)),
            finish=self.finish,
        )

    def finish(self) -> None:
        self.finished += 1


def test_names_are_grouped() -> None:
    names = ("loss", "validation_loss", "tokens_per_second", "data_wait_seconds", "gradient_norm")
    assert [grouped(name) for name in names] == [
        "train/loss", "validation/loss", "speed/tokens_per_second", "speed/data_wait_seconds",
        "train/gradient_norm",
    ]  # fmt: skip
    assert flatten({"a": {"b": [1, 2], "c": None}, "d": 0.5}) == {"a.b": "[1, 2]", "a.c": "None",
                                                               "d": 0.5}  # fmt: skip


def test_tensorboard_has_groups_and_hyper_parameters(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    writer = TensorBoard(tmp_path, 0, {"seed": 3, "training": {"schedule": "cosine"}})
    writer.add({"train/loss": 0.5, "validation/loss": 1.0}, 2)
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["train/loss", "validation/loss"]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(2, 0.5)]
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    assert found["seed"].number_value == 3
    assert found["training.schedule"].string_value == "cosine"


def test_weights_and_biases_gets_the_curves(tmp_path: Path, monkeypatch) -> None:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    how = {"tracker": "wandb", "tensorboard": False, "log_every": 5, "evaluate_every": 10}
    recipe = {"training": {"steps": 10}}
    run = tmp_path / "toy"
    train(Toy(), config(steps=10, save_every=5, **how), run, seed=3, recipe=recipe)
    (begun,) = stand_in.begun
    assert (begun["name"], begun["config"], begun["id"]) == ("toy", recipe, None)
    assert [step for _, step in stand_in.logged] == [5, 10, 10] and stand_in.finished == 1
    assert "train/loss" in stand_in.logged[0][0] and "validation/loss" in stand_in.logged[2][0]
    assert json.loads((run / WANDB_FILE).read_text()) == {"id": "abc"}
    train(Toy(), config(steps=15, **how), run, seed=3, resume=True, recipe=recipe)
    assert stand_in.begun[1]["id"] == "abc"


def test_what_is_not_installed_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = tmp_path / "run"
    assert main(["train", "causal-lm/tiny", "--wandb", "--out", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'foundation-transformers[wandb]'" in line and not run.exists()
