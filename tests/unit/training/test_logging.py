"""Rows of metrics, trackers that show them, throughput by a clock that the test sets."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from magneto.cli import main
from magneto.training import logging as module
from magneto.training.logging import (
    PEAKS,
    WANDB_FILE,
    MetricsLogger,
    TensorBoard,
    Throughput,
    TrainingResult,
    WeightsAndBiases,
    closing_lines,
    mean_of_steps,
    nominal_peaks,
    peak_flops,
    read_environments,
    read_metrics,
    write_environment,
)
from magneto.training.loop import train
from tests.unit.training.toy import Toy, config, run_toy


def write(run: Path, from_step: int, steps: range) -> None:
    logger = MetricsLogger(run, from_step)
    for step in steps:
        logger.add({"step": step, "loss": 1 / step})
        assert read_metrics(run)[-1]["step"] == step, "a page or a kill may come at any time"
    logger.close()


def test_rows_after_the_checkpoint_are_cut_away_and_a_bad_one_loses_no_other(
    tmp_path: Path,
) -> None:
    write(tmp_path, 0, range(1, 9))
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 9, "lo')  # killed while writing
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(1, 9))
    lines = path.read_bytes().splitlines()
    lines[1:5] = b'{"step": 2, "lo', b'"a \xff word"', b"[4]", b"[" * 100_000
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 6, 7, 8]
    write(tmp_path, 6, range(7, 9))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 6, 7, 8]
    logger = MetricsLogger(tmp_path, 8)
    path.rename(tmp_path / "moved")
    path.touch()  # as if another run began
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl is gone"):
        logger.add({"step": 9})
    logger.close()


def test_a_row_is_the_mean_over_all_predictions_of_its_steps() -> None:
    steps = [{"step": 3, "loss": 6.0, "count": 2, "right": 1.0, "gradient_norm": 5.0},
             {"step": 4, "loss": 2.0, "count": 6, "right": 3.0, "gradient_norm": 7.0}]  # fmt: skip
    assert mean_of_steps(steps) == {"step": 4, "loss": 1.0, "right": 0.5, "gradient_norm": 7.0}


def test_the_environment_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, version = "processor\t: 0\nmodel name\t: A: 1\n", metadata.version("torch")
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, **how: (
        lines if path == Path("/proc/cpuinfo") else read(path, **how)))  # fmt: skip
    found = module.environment()
    assert (found["command"], found["processor"]) == (sys.argv, "A: 1")
    assert (found["cores"], found["threads"]) == (os.cpu_count(), torch.get_num_threads())
    assert found["packages"]["torch"] == version and found["gpus"] == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is missing")
def test_the_commit_says_whether_the_code_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its hash, also where it has a tag; code inside another project's has none."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    for variable in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    commit = inspect.unwrap(module._commit)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "logging.py"))
    assert commit() is None
    git("init")
    git("commit", "--allow-empty", "-m", "a")
    (tmp_path / "logging.py").write_text("1")
    assert commit() is None
    git("add", ".")
    git("commit", "-m", "b")
    git("tag", "-m", "t", "v1")
    name = git("rev-parse", "HEAD")[:12]
    assert commit() == name
    (tmp_path / "logging.py").write_text("2")
    assert commit() == f"{name}-dirty"


def test_a_damaged_record_of_the_environment_is_set_aside(tmp_path: Path) -> None:
    run_toy(tmp_path, steps=5)
    (tmp_path / "environment.json").write_text("x")
    run_toy(tmp_path, steps=6, resume=True)
    assert len(read_environments(tmp_path / "environment.json")) == 1
    assert (tmp_path / "environment.damaged.json").read_text() == "x"
    (tmp_path / "environment.json").write_text('[{"python": "3"}, 4]')
    write_environment(tmp_path)
    write_environment(tmp_path)
    assert len(read_environments(tmp_path / "environment.json")) == 2


def test_tensorboard_has_groups_and_hyper_parameters(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    recipe = {"seed": 3, "training": {"schedule": "cosine", "part": {"betas": [0.5, None]}}}
    for first, steps in ((0, (2, 3)), (2, (3,))):  # as a resumed run repeats steps
        writer = TensorBoard(tmp_path, first, recipe)
        for step in steps:
            writer.add({"train/loss": first + 0.5, "validation/loss": 1.0}, step)
        writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["train/loss", "validation/loss"]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(2, 0.5), (3, 2.5)]
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    assert found["seed"].number_value == 3
    assert found["training.schedule"].string_value == "cosine"
    assert found["training.part.betas"].string_value == "[0.5, None]"


def test_weights_and_biases_gets_the_curves(tmp_path: Path, monkeypatch) -> None:
    wandb = Mock()
    begun, logged = wandb.init, wandb.init.return_value.log
    begun.return_value.id = "abc"
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    how = {"tracker": "wandb", "tensorboard": False, "log_every": 5, "evaluate_every": 10}
    recipe = {"training": {"steps": 10}}
    run = tmp_path / "toy"
    train(Toy(), config(steps=10, save_every=5, **how), run, seed=3, recipe=recipe)
    given = begun.call_args.kwargs
    assert (given["name"], given["config"], given["id"]) == ("toy", recipe, None)
    assert given["project"] == "magneto" and given["resume"] == "allow"
    (first, _, last) = logged.call_args_list
    assert [call.kwargs["step"] for call in logged.call_args_list] == [5, 10, 10]
    names = {"train/gradient_norm", "train/loss", "speed/data_wait_seconds",
             "speed/rows_per_second"}  # fmt: skip
    assert names <= {*first.args[0]} and {"validation/loss", "validation/sign"} == {*last.args[0]}
    begun.return_value.finish.assert_called_once_with()
    assert json.loads((run / WANDB_FILE).read_text()) == {"id": "abc"}
    train(Toy(), config(steps=15, **how), run, seed=3, resume=True, recipe=recipe)
    assert begun.call_args.kwargs["id"] == "abc"
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    WeightsAndBiases(run, {}).add({"a": 1.0, "b": float("nan")}, 3)
    assert begun.call_args.kwargs["project"] == "mine"
    logged.assert_called_with({"a": 1.0}, step=3)


def test_what_is_not_installed_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = tmp_path / "run"
    assert main(["train", "causal-lm/tiny", "--training.tracker", "wandb", "--out", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'foundation-transformers[wandb]'" in line and not run.exists()


def test_rate_leaves_out_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([100.0, 104.0, 106.0, 107.0])
    clock = SimpleNamespace(perf_counter=lambda: next(readings))
    monkeypatch.setattr(module, "time", clock)
    meter = Throughput(flops_per_unit=10.0, peak=1000.0)
    meter.pause(1.5)
    meter.add(30)
    meter.add(20)
    rate, utilisation = meter.read(world_size=2)
    assert rate == 2 * 50 / 2.5
    assert utilisation == pytest.approx(50 / 2.5 * 10 / 1000)
    assert meter.read(2) == (0, 0)
    meter.add(3)
    assert meter.read(1)[0] == 3, "the pause counts once"


def test_a_device_has_the_peak_of_its_own_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"H100 80GB HBM3": "H100", "H100 PCIe": "H100 PCIe", "H200": "H200", "L40": "L40",
             "A100-SXM4-40GB": "A100", "L40S": "L40S", "L4": "L4"}  # fmt: skip
    for name, row in names.items():
        assert nominal_peaks(f"NVIDIA {name}") == PEAKS[row], name
    assert nominal_peaks("Somebody's GPU") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-40GB")
    found = {kind: peak_flops(torch.device("cuda"), kind) for kind in ("bf16", "fp32")}
    assert found == {"bf16": 312e12, "fp32": 19.5e12}
    assert peak_flops(torch.device("cpu"), "bf16") is None


def test_trackers_are_opened_beside_each_other(tmp_path: Path, monkeypatch) -> None:
    board, biases, lines = Mock(), Mock(), Mock()
    monkeypatch.setattr(module, "TensorBoard", board)
    monkeypatch.setattr(module, "WeightsAndBiases", biases)
    given = (tmp_path, 3, config(tensorboard=True, tracker="wandb"), {}, lines)
    assert module.open_trackers(*given) == [board.return_value, biases.return_value]
    board.assert_called_once_with(tmp_path, 3, {})
    board.side_effect = ImportError
    assert module.open_trackers(*given) == [biases.return_value] and lines.call_count == 1


@pytest.mark.parametrize(("status", "calls"), [("diverged", [call(20)]), ("interrupted", [])])
def test_a_few_batches_measure_the_baseline(status: str, calls: list, tmp_path: Path) -> None:
    """20 of masked language modelling, unless the run goes on later."""
    task = Mock()
    task.baseline.return_value, task.problems.describe.return_value = {"loss": 1.23456}, ""
    state = SimpleNamespace(run=tmp_path, task=task, report=Mock(), config=config(),
                            recipe={"task": "masked-lm"}, metrics_logger=Mock())  # fmt: skip
    module.end_run(state, TrainingResult(status, 3, {}, {}, 3, "", 1.0))
    assert task.baseline.call_args_list == calls
    assert json.loads((tmp_path / "result.json").read_text())["status"] == status


@pytest.mark.parametrize(("patience", "scores"), [(None, "0.25"), (5, "step 7")])
def test_the_end_names_the_best_step_unless_it_is_the_last(patience: Any, scores: str) -> None:
    state = SimpleNamespace(
        run=Path("run"), config=config(patience=patience), first_step=0, losses=[1.0, 3.0],
        task=Toy(),
    )  # fmt: skip
    for step, said in ((7, True), (9, False)):
        result = TrainingResult("finished", 9, {}, {"step": step, "value": 0.25}, None, "", 150)
        lines = closing_lines(state, result, [])
        assert lines[0] == "finished after 2:30, 9 steps"
        assert lines[1].split() == ["training", "loss", "2"]
        found = [line for line in lines if f"step {step}" in line or f"step: {step}" in line]
        assert [scores in line for line in found] == [True] * said
