"""What a task may have besides a model: a frozen companion, values made of data and of steps."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from magneto.training.model import count_flops
from magneto.training.optimizer import build_optimizer, set_learning_rate
from magneto.training.task import place_companion
from magneto.weights import list_checkpoints, open_tensors
from tests.ranks import run_ranks
from tests.unit.training.moving import Moving, MovingTask
from tests.unit.training.toy import Toy, config, run_toy


def mean_of(directory: Path) -> torch.Tensor:
    return open_tensors(directory)["mean"].read()


def test_a_companion_is_frozen_and_in_no_checkpoint(tmp_path: Path) -> None:
    task = MovingTask()
    run_toy(tmp_path, task=task, steps=8)
    assert not task.teacher.training
    assert not any(p.requires_grad for p in task.teacher.parameters())
    assert torch.equal(task.teacher.weight, torch.full((1, 4), 0.5))
    for kind in ("model", "optimizer"):
        names = open_tensors(list_checkpoints(tmp_path)[-1], kind)
        assert names and not any("companion" in name for name in names)


def test_a_companion_is_counted_and_stays_where_it_is() -> None:
    task = MovingTask()
    place_companion(task, torch.device("cpu"))
    batch = task.train_stream(8, 0).batch(0)[0]
    counted, units = count_flops(task, batch)
    assert counted == count_flops(Toy(), batch)[0] + 2 * 4 * units
    assert torch.equal(task.teacher.weight, torch.full((1, 4), 0.5))


def test_values_made_of_data_and_of_steps(tmp_path: Path) -> None:
    """The mean of two batches, moved after each step by the step's own."""
    run_toy(tmp_path, task=MovingTask(), steps=3, save_every=0)
    stream = MovingTask().train_stream(16, 3).batches()
    batches = [next(stream)[0][0] for _ in range(3)]
    mean = torch.cat(batches[:2]).mean(0)
    for batch in batches:
        mean = mean.lerp(batch.mean(0), 0.1)
    assert torch.allclose(mean_of(tmp_path / "final"), mean, atol=1e-6)


def test_micro_batches_and_resuming_change_nothing(tmp_path: Path) -> None:
    run_toy(tmp_path / "whole", task=MovingTask(), steps=12)
    run_toy(tmp_path / "cut", task=MovingTask(), steps=12, gradient_accumulation_steps=4)
    run_toy(tmp_path / "resumed", task=MovingTask(), steps=7)
    run_toy(tmp_path / "resumed", task=MovingTask(), steps=12, resume=True)
    whole = mean_of(tmp_path / "whole" / "final")
    assert torch.allclose(mean_of(tmp_path / "cut" / "final"), whole, atol=1e-6)
    assert torch.equal(mean_of(tmp_path / "resumed" / "final"), whole)


def test_multiples_of_the_rate() -> None:
    model = Moving()
    multipliers = MovingTask().rate_multipliers(model)
    optimizer = build_optimizer(model, config(optimizer="sgd", weight_decay=0.0), multipliers)
    set_learning_rate(optimizer, 1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        step = 0.1 if name.startswith("into") else 1.0
        assert torch.allclose(before[name] - parameter, torch.full_like(parameter, step))


def test_a_multiple_of_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of nothing\.weight, which the model has not"):
        build_optimizer(nn.Linear(2, 2), config(), {"nothing.weight": 0.5})


@pytest.mark.distributed
def test_ranks_agree(tmp_path: Path) -> None:
    run_toy(tmp_path / "one", task=MovingTask(), steps=12)
    run_ranks(2, "tests/unit/training/moving.py", str(tmp_path / "two"), "distributed=ddp")
    one, two = (open_tensors(tmp_path / name / "final") for name in ("one", "two"))
    for name in one:
        assert torch.allclose(one[name].read(), two[name].read(), atol=1e-5), name
    assert json.loads((tmp_path / "two" / "result.json").read_text())["status"] == "finished"
