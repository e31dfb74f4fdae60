"""What decays, the rate of each weight, the average of the weights.

The scale of gradients is compared with a plain loop of torch, and ranks with one process.
"""

import math

import pytest
import torch
from torch import nn

from magneto.training import optimizer as optimizer_module
from magneto.training.distributed import World
from magneto.training.optimizer import (
    WeightAverage,
    build_optimizer,
    gradient_scale,
    set_learning_rate,
    split_parameters,
)
from tests.unit.training.toy import Moving, MovingModel, config


def test_only_matrices_decay_and_a_tied_one_is_a_table() -> None:
    parts = nn.ModuleDict(
        {"table": nn.Embedding(5, 4), "linear": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}
    )
    parts["head"] = nn.Linear(4, 5, bias=False)
    parts["head"].weight = parts["table"].weight
    parts["norm"].register_parameter("head_bias", nn.Parameter(torch.ones(2, 4)))
    decayed, plain = split_parameters(parts)
    assert [id(p) for p in decayed] == [id(parts["linear"].weight)] and len(plain) == 5
    optimizer = build_optimizer(
        parts, config(learning_rate=0.1, weight_decay=0.5, betas=(0.8, 0.7), eps=1e-3)
    )
    assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == ((0.8, 0.7), 1e-3)
    before = {name: p.detach().clone() for name, p in parts.named_parameters()}
    for parameter in parts.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in parts.named_parameters():
        factor = 0.95 if name == "linear.weight" else 1.0
        assert torch.allclose(parameter, before[name] * factor)


def test_multiples_of_the_rate() -> None:
    model = MovingModel()
    multipliers = Moving().rate_multipliers(model)
    optimizer = build_optimizer(model, config(optimizer="sgd", weight_decay=0.0), multipliers)
    set_learning_rate(optimizer, 1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        step = 0.1 if name.startswith("into") else 1.0
        assert torch.allclose(before[name] - parameter, torch.full_like(parameter, step))
    with pytest.raises(ValueError, match=r"nothing\.weight: the model has no such parameter"):
        build_optimizer(nn.Linear(2, 2), config(), {"nothing.weight": 0.5})


def test_shards_of_a_gradient_have_the_norm_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 ranks hold 2 copies in 2 shards, and these ranks' shards are alike. FSDP has averaged."""
    monkeypatch.setattr(optimizer_module, "all_reduce_sum", lambda square, world: square * 4)
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    world, count = World(0, 4, torch.device("cpu"), "hybrid", 2), torch.tensor(10)
    norm, scale = gradient_scale([parameter], count, 1.0, world)
    whole = 4 / 10 * math.sqrt(2) * 5  # of the mean over 10 predictions
    assert norm.item() == pytest.approx(whole)
    assert scale.item() == pytest.approx(4 / 10 / whole, rel=1e-4)


def test_the_average_has_a_closed_form_and_is_exchanged() -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average = WeightAverage(model, 0.9)
        model.weight.fill_(1.0)
    for _ in range(5):
        average.update()
    expected = torch.full((2, 2), 1 - 0.9**5)
    with average.in_place():
        assert torch.allclose(model.weight, expected)
    assert torch.equal(model.weight, torch.ones(2, 2))
    assert torch.allclose(average.average[0], expected)
    average.reset()
    assert torch.equal(average.average[0], torch.ones(2, 2))
